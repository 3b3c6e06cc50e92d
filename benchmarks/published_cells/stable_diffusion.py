# Stable Diffusion 1.5 as a pipeline: 512 px, 30 steps (three predicted: they repeat), one image.
import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

half = 0
fused_attention = 0
steps = 3

unet = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, attention_head_dim=8)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
    sample_size=512,
)
text = CLIPTextModel(
    CLIPTextConfig(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        vocab_size=49408,
        projection_dim=768,
    )
)
pipe = StableDiffusionPipeline(
    vae=vae,
    text_encoder=text,
    tokenizer=None,
    unet=unet,
    scheduler=PNDMScheduler(skip_prk_steps=True, steps_offset=1),
    safety_checker=None,
    feature_extractor=None,
    requires_safety_checker=False,
)
pipe = pipe.to(torch.bfloat16 if half else torch.float32)
if not fused_attention:
    pipe.unet.set_default_attn_processor()
    pipe.vae.set_default_attn_processor()
    from diffusers.models.attention_processor import AttnProcessor

    pipe.unet.set_attn_processor(AttnProcessor())
    pipe.vae.set_attn_processor(AttnProcessor())
pipe = pipe.to("cuda")
pipe.set_progress_bar_config(disable=True)
words = torch.ones(1, 77, dtype=torch.int64)
with torch.no_grad():
    positive = pipe.text_encoder(words.to("cuda"))[0]
    negative = pipe.text_encoder(words.to("cuda"))[0]
image = pipe(
    prompt_embeds=positive,
    negative_prompt_embeds=negative,
    num_inference_steps=steps,
    output_type="pt",
).images
