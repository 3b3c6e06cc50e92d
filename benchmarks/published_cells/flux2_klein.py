# FLUX.2-klein-base-4B, bf16: 512 px, checkpointing, AdamW; a DINOv2 judge lies on the card.
import torch
from diffusers import Flux2Transformer2DModel
from peft import LoraConfig, get_peft_model
from transformers import Dinov2Config, Dinov2Model

rank = 32
dora = 0
steps = 2
batch_size = 2
images = 14

transformer = Flux2Transformer2DModel(
    num_layers=5,
    num_single_layers=20,
    num_attention_heads=24,
    joint_attention_dim=7680,
    guidance_embeds=False,
).to(torch.bfloat16)
transformer.enable_gradient_checkpointing()
if rank:
    targets = "to_out.0 to_add_out to_qkv_mlp_proj add_k_proj add_q_proj add_v_proj to_k to_q to_v"
    config = LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules=[*targets.split(), "linear_in", "linear_out"],
        use_dora=bool(dora),
    )
    transformer = get_peft_model(transformer, config)
transformer.train()
judge = Dinov2Model(Dinov2Config(image_size=518, patch_size=14)).to("cuda").eval()
transformer = transformer.to("cuda")
optimizer = torch.optim.AdamW(transformer.parameters(), lr=1e-4, weight_decay=1e-4)
prompts = torch.randn(images, 512, 7680, dtype=torch.bfloat16, device="cuda")
text_ids = torch.zeros(images, 512, 4, device="cuda", dtype=torch.int64)
latents_cache = torch.randn(images, 128, 32, 32, dtype=torch.bfloat16, device="cuda")
image_ids = torch.zeros(batch_size, 1024, 4, dtype=torch.int64).to("cuda")
for step in range(steps):
    chosen = torch.arange(batch_size, device="cuda")
    latents = latents_cache.index_select(0, chosen)
    embeds = prompts.index_select(0, chosen)
    ids = text_ids.index_select(0, chosen)
    noise = torch.randn_like(latents)
    sigmas = torch.rand(batch_size, 1, 1, 1, dtype=latents.dtype).to("cuda")
    noisy = (1.0 - sigmas) * latents + sigmas * noise
    packed = noisy.reshape(batch_size, 128, 1024).permute(0, 2, 1)
    optimizer.zero_grad(set_to_none=True)
    prediction = transformer(
        hidden_states=packed,
        timestep=torch.rand(batch_size, device="cuda"),
        guidance=None,
        encoder_hidden_states=embeds,
        txt_ids=ids,
        img_ids=image_ids,
        return_dict=False,
    )[0]
    prediction = prediction[:, :1024].permute(0, 2, 1).reshape(latents.shape)
    target = noise - latents
    loss = ((prediction.float() - target.float()) ** 2).reshape(batch_size, -1).mean(1).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
    optimizer.step()
