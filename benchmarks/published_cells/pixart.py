# PixArt-XL-2-1024-MS with its T5-XXL: 1024 px, one image (two of 30 steps).
import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtAlphaPipeline
from diffusers import PixArtTransformer2DModel
from transformers import T5Config, T5EncoderModel

half = 0
fused_attention = 0
steps = 2

transformer = PixArtTransformer2DModel(sample_size=128, caption_channels=4096)
vae = AutoencoderKL(
    block_out_channels=(128, 256, 512, 512),
    down_block_types=("DownEncoderBlock2D",) * 4,
    up_block_types=("UpDecoderBlock2D",) * 4,
    layers_per_block=2,
    sample_size=512,
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
pipe = PixArtAlphaPipeline(
    tokenizer=None,
    text_encoder=t5,
    vae=vae,
    transformer=transformer,
    scheduler=DPMSolverMultistepScheduler(),
).to(torch.bfloat16 if half else torch.float32)
if not fused_attention:
    from diffusers.models.attention_processor import AttnProcessor

    pipe.transformer.set_attn_processor(AttnProcessor())
    pipe.vae.set_attn_processor(AttnProcessor())
pipe = pipe.to("cuda")
pipe.set_progress_bar_config(disable=True)
words = torch.ones(1, 120, dtype=torch.int64)
mask = torch.ones(1, 120, dtype=torch.int64).to("cuda")
with torch.no_grad():
    embeds = pipe.text_encoder(words.to("cuda"))[0]
image = pipe(
    negative_prompt=None,
    prompt_embeds=embeds,
    prompt_attention_mask=mask,
    negative_prompt_embeds=embeds,
    negative_prompt_attention_mask=mask,
    num_inference_steps=steps,
    use_resolution_binning=False,
    output_type="pt",
).images
