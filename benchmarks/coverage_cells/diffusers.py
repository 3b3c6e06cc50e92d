# %% unconditional training | https://huggingface.co/docs/diffusers/main/en/tutorials/basic_training
import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel

model = UNet2DModel(
    sample_size=64,
    block_out_channels=(64, 128, 128, 256),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
).cuda()
scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    clean = torch.randn(8, 3, 64, 64, device="cuda")
    noise = torch.randn_like(clean)
    steps = torch.randint(0, 1000, (8,), device="cuda")
    pred = model(scheduler.add_noise(clean, noise, steps), steps, return_dict=False)[0]
    F.mse_loss(pred, noise).backward()
    optimizer.step()
    optimizer.zero_grad()

# %% ddpm pipeline | https://huggingface.co/docs/diffusers/main/en/quicktour
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

unet = UNet2DModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = DDPMPipeline(unet, DDPMScheduler()).to("cuda")
images = pipeline(batch_size=4, num_inference_steps=20).images

# %% cpu offload | https://huggingface.co/docs/diffusers/main/en/optimization/memory
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

unet = UNet2DModel(
    sample_size=32,
    block_out_channels=(64, 128),
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
pipeline = DDPMPipeline(unet, DDPMScheduler())
pipeline.enable_model_cpu_offload()
images = pipeline(batch_size=4, num_inference_steps=10).images

# %% vae tiling | https://huggingface.co/docs/diffusers/main/en/optimization/memory
import torch
from diffusers import AutoencoderKL

vae = (
    AutoencoderKL(
        block_out_channels=(128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
    )
    .half()
    .cuda()
)
vae.enable_slicing()
vae.enable_tiling()
with torch.no_grad():
    image = vae.decode(torch.randn(1, 4, 128, 128, device="cuda", dtype=torch.float16)).sample

# %% text to image lora | https://huggingface.co/docs/diffusers/training/lora
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from peft import LoraConfig
from accelerate import Accelerator
from transformers import CLIPTextConfig, CLIPTextModel

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="fp16")
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
text_encoder = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
)
vae = AutoencoderKL(
    block_out_channels=(32, 64, 64),
    down_block_types=("DownEncoderBlock2D",) * 3,
    up_block_types=("UpDecoderBlock2D",) * 3,
)
unet = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(64, 128, 256, 256),
    cross_attention_dim=256,
    attention_head_dim=8,
    norm_num_groups=32,
)
for m in (unet, vae, text_encoder):
    m.requires_grad_(False)
weight_dtype = torch.float16
unet_lora_config = LoraConfig(
    r=4,
    lora_alpha=4,
    init_lora_weights="gaussian",
    target_modules=["to_k", "to_q", "to_v", "to_out.0"],
)
for m in (unet, vae, text_encoder):
    m.to(accelerator.device, dtype=weight_dtype)
unet.add_adapter(unet_lora_config)
for p in unet.parameters():
    if p.requires_grad:
        p.data = p.to(torch.float32)
lora_layers = list(filter(lambda p: p.requires_grad, unet.parameters()))
optimizer = torch.optim.AdamW(lora_layers, lr=1e-4, weight_decay=1e-2)
lr_scheduler = get_scheduler(
    "constant", optimizer=optimizer, num_warmup_steps=0, num_training_steps=4
)
data = torch.utils.data.DataLoader(
    [
        {"pixel_values": torch.randn(3, 128, 128), "input_ids": torch.randint(0, 49408, (77,))}
        for _ in range(16)
    ],
    batch_size=4,
)
unet, optimizer, data, lr_scheduler = accelerator.prepare(unet, optimizer, data, lr_scheduler)
train_loss = 0.0
for step, batch in enumerate(data):
    with accelerator.accumulate(unet):
        latents = (
            vae.encode(batch["pixel_values"].to(dtype=weight_dtype)).latent_dist.sample()
            * vae.config.scaling_factor
        )
        noise = torch.randn_like(latents)
        bsz = latents.shape[0]
        timesteps = torch.randint(
            0, noise_scheduler.config.num_train_timesteps, (bsz,), device=latents.device
        ).long()
        noisy_latents = noise_scheduler.add_noise(latents, noise, timesteps)
        encoder_hidden_states = text_encoder(batch["input_ids"], return_dict=False)[0]
        model_pred = unet(noisy_latents, timesteps, encoder_hidden_states, return_dict=False)[0]
        loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
        avg_loss = accelerator.gather(loss.repeat(4)).mean()
        train_loss += avg_loss.item() / 2
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(lora_layers, 1.0)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()

# %% controlnet training | https://huggingface.co/docs/diffusers/training/controlnet
import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, DDPMScheduler, UNet2DConditionModel

unet = UNet2DConditionModel(
    sample_size=32,
    block_out_channels=(64, 128, 256, 256),
    cross_attention_dim=256,
    attention_head_dim=8,
)
controlnet = ControlNetModel.from_unet(unet)
unet.requires_grad_(False)
controlnet.train()
controlnet.enable_gradient_checkpointing()
unet.to("cuda", dtype=torch.bfloat16)
controlnet.to("cuda")
optimizer = torch.optim.AdamW(controlnet.parameters(), lr=5e-6)
noise_scheduler = DDPMScheduler()
for _ in range(3):
    latents = torch.randn(4, 4, 32, 32, device="cuda")
    hidden = torch.randn(4, 77, 256, device="cuda")
    cond = torch.randn(4, 3, 256, 256, device="cuda")
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, 1000, (4,), device="cuda").long()
    noisy = noise_scheduler.add_noise(latents, noise, timesteps)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        down, mid = controlnet(
            noisy, timesteps, encoder_hidden_states=hidden, controlnet_cond=cond, return_dict=False
        )
        pred = unet(
            noisy,
            timesteps,
            encoder_hidden_states=hidden,
            down_block_additional_residuals=[d.to(torch.bfloat16) for d in down],
            mid_block_additional_residual=mid.to(torch.bfloat16),
            return_dict=False,
        )[0]
    loss = F.mse_loss(pred.float(), noise.float())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(controlnet.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

# %% img2img | https://huggingface.co/docs/diffusers/using-diffusers/img2img
import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionImg2ImgPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel

text_encoder = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
)
vae = AutoencoderKL(
    block_out_channels=(64, 128, 128, 128),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
unet = UNet2DConditionModel(
    sample_size=64,
    block_out_channels=(64, 128, 256, 256),
    cross_attention_dim=256,
    attention_head_dim=8,
)
pipe = StableDiffusionImg2ImgPipeline(
    vae=vae,
    text_encoder=text_encoder,
    tokenizer=None,
    unet=unet,
    scheduler=EulerDiscreteScheduler(),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
).to("cuda", torch.float16)
pipe.enable_attention_slicing()
embeds = torch.randn(1, 77, 256, dtype=torch.float16, device="cuda")
image = pipe(
    prompt_embeds=embeds,
    negative_prompt_embeds=torch.zeros_like(embeds),
    image=torch.rand(1, 3, 512, 512),
    strength=0.75,
    guidance_scale=7.5,
    num_inference_steps=20,
    generator=torch.Generator("cuda").manual_seed(0),
).images[0]
image.save("out.png")

# %% inpaint | https://huggingface.co/docs/diffusers/using-diffusers/inpaint
import torch
from diffusers import (
    AutoencoderKL,
    DPMSolverMultistepScheduler,
    StableDiffusionInpaintPipeline,
    UNet2DConditionModel,
)
from transformers import CLIPTextConfig, CLIPTextModel

text_encoder = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4
    )
)
vae = AutoencoderKL(
    block_out_channels=(64, 128, 128, 128),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
unet = UNet2DConditionModel(
    sample_size=64,
    in_channels=9,
    block_out_channels=(64, 128, 256, 256),
    cross_attention_dim=256,
    attention_head_dim=8,
)
pipe = StableDiffusionInpaintPipeline(
    vae=vae,
    text_encoder=text_encoder,
    tokenizer=None,
    unet=unet,
    scheduler=DPMSolverMultistepScheduler(),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
)
pipe.enable_model_cpu_offload()
embeds = torch.randn(1, 77, 256)
image = pipe(
    prompt_embeds=embeds,
    negative_prompt_embeds=torch.zeros_like(embeds),
    image=torch.rand(1, 3, 512, 512),
    mask_image=torch.ones(1, 1, 512, 512),
    num_inference_steps=10,
).images[0]

# %% flux transformer | https://huggingface.co/docs/diffusers/api/pipelines/flux
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)

transformer = FluxTransformer2DModel(
    num_layers=2,
    num_single_layers=4,
    attention_head_dim=64,
    num_attention_heads=8,
    joint_attention_dim=512,
    pooled_projection_dim=256,
    axes_dims_rope=(8, 28, 28),
    guidance_embeds=True,
)
vae = AutoencoderKL(
    block_out_channels=(64, 128, 128, 128),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    latent_channels=16,
    use_quant_conv=False,
    use_post_quant_conv=False,
    shift_factor=0.1,
    scaling_factor=0.36,
)
pipe = FluxPipeline(
    scheduler=FlowMatchEulerDiscreteScheduler(),
    vae=vae,
    text_encoder=None,
    tokenizer=None,
    text_encoder_2=None,
    tokenizer_2=None,
    transformer=transformer,
).to("cuda", torch.bfloat16)
pipe.vae.enable_slicing()
out = pipe(
    prompt_embeds=torch.randn(1, 256, 512, dtype=torch.bfloat16, device="cuda"),
    pooled_prompt_embeds=torch.randn(1, 256, dtype=torch.bfloat16, device="cuda"),
    height=512,
    width=512,
    num_inference_steps=8,
    guidance_scale=3.5,
    max_sequence_length=256,
    output_type="pt",
).images

# %% flux pipeline offloaded | https://huggingface.co/docs/diffusers/api/pipelines/flux
import torch
from diffusers import (
    AutoencoderKL,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
)

transformer = FluxTransformer2DModel(
    num_layers=3,
    num_single_layers=6,
    num_attention_heads=12,
    attention_head_dim=64,
    joint_attention_dim=1024,
    pooled_projection_dim=512,
    axes_dims_rope=(8, 28, 28),
    guidance_embeds=True,
)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    latent_channels=16,
    use_quant_conv=False,
    use_post_quant_conv=False,
    shift_factor=0.1,
    scaling_factor=0.36,
)
pipe = FluxPipeline(
    scheduler=FlowMatchEulerDiscreteScheduler(),
    vae=vae,
    text_encoder=None,
    tokenizer=None,
    text_encoder_2=None,
    tokenizer_2=None,
    transformer=transformer,
).to(torch.bfloat16)
pipe.enable_model_cpu_offload()
pipe.vae.enable_tiling()
image = pipe(
    prompt_embeds=torch.randn(1, 128, 1024, dtype=torch.bfloat16, device="cuda"),
    pooled_prompt_embeds=torch.randn(1, 512, dtype=torch.bfloat16, device="cuda"),
    height=768,
    width=768,
    num_inference_steps=4,
    guidance_scale=3.5,
    generator=torch.Generator("cpu").manual_seed(0),
).images[0]

# %% dreambooth lora | https://huggingface.co/docs/diffusers/training/dreambooth
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import cast_training_params
from peft import LoraConfig
from transformers import CLIPTextConfig, CLIPTextModel

unet = UNet2DConditionModel(
    sample_size=64,
    block_out_channels=(160, 320, 640, 640),
    cross_attention_dim=512,
    attention_head_dim=8,
)
text = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=1000,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
    )
)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
)
for m in (unet, text, vae):
    m.requires_grad_(False)
    m.to("cuda", torch.float16)
unet.add_adapter(
    LoraConfig(
        r=8,
        lora_alpha=8,
        init_lora_weights="gaussian",
        target_modules=["to_k", "to_q", "to_v", "to_out.0", "add_k_proj"],
    )
)
unet.enable_gradient_checkpointing()
cast_training_params(unet, dtype=torch.float32)
sched = DDPMScheduler()
params = [p for p in unet.parameters() if p.requires_grad]
opt = torch.optim.AdamW(params)
scaler = torch.amp.GradScaler()
for _ in range(2):
    lat = (
        vae.encode(
            torch.randn(2, 3, 512, 512, device="cuda", dtype=torch.float16)
        ).latent_dist.sample()
        * vae.config.scaling_factor
    )
    noise = torch.randn_like(lat)
    t = torch.randint(0, 1000, (2,), device="cuda")
    h = text(torch.randint(0, 1000, (2, 77), device="cuda"))[0]
    with torch.autocast("cuda", torch.float16):
        pred = unet(sched.add_noise(lat, noise, t), t, h).sample
    a, b = torch.chunk(pred.float(), 2)
    loss = F.mse_loss(a, noise.float()[:1]) + F.mse_loss(b, noise.float()[1:])
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
