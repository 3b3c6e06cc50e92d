# FLUX.1-dev in bf16 with both its text encoders: 1024 px (two of 50 steps), and the decoded image.
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline
from diffusers import FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

steps = 2
loading_only = 0

transformer = FluxTransformer2DModel(guidance_embeds=True)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
    latent_channels=16,
    sample_size=1024,
    use_quant_conv=False,
    use_post_quant_conv=False,
    shift_factor=0.1159,
    scaling_factor=0.3611,
)
clip = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        vocab_size=49408,
        projection_dim=768,
    )
)
t5 = T5EncoderModel(
    T5Config(
        d_model=4096,
        d_ff=10240,
        d_kv=64,
        num_heads=64,
        num_layers=24,
        vocab_size=32128,
        feed_forward_proj="gated-gelu",
    )
)
pipe = FluxPipeline(
    scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    vae=vae,
    text_encoder=clip,
    tokenizer=None,
    text_encoder_2=t5,
    tokenizer_2=None,
    transformer=transformer,
).to(torch.bfloat16)
pipe.to("cuda")
pipe.set_progress_bar_config(disable=True)
if not loading_only:
    with torch.no_grad():
        pooled = pipe.text_encoder(torch.ones(1, 77, dtype=torch.int64).to("cuda")).pooler_output
        embeds = pipe.text_encoder_2(torch.ones(1, 512, dtype=torch.int64).to("cuda"))[0]
    image = pipe(
        prompt_embeds=embeds,
        pooled_prompt_embeds=pooled,
        height=1024,
        width=1024,
        guidance_scale=3.5,
        num_inference_steps=steps,
        output_type="pt",
    ).images
