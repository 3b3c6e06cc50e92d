# CLIP: image and text towers, float32; AdamW.
import torch
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

batch_size = 16
image = 128
width = 256
layers = 3

text = CLIPTextConfig(
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=layers,
    num_attention_heads=4,
    vocab_size=8000,
)
vision = CLIPVisionConfig(
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=layers,
    num_attention_heads=4,
    image_size=image,
    patch_size=16,
)
model = CLIPModel(
    CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=128)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    pixels = torch.randn(batch_size, 3, image, image, device="cuda")
    tokens = torch.randint(3, 8000, (batch_size, 40), device="cuda")
    loss = model(input_ids=tokens, pixel_values=pixels, return_loss=True).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
