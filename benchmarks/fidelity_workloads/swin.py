# Swin: attention in shifted windows, float32; AdamW.
import torch
from transformers import SwinConfig, SwinForImageClassification

batch_size = 8
image = 128
width = 48

config = SwinConfig(
    image_size=image,
    patch_size=4,
    embed_dim=width,
    depths=[2, 2, 2],
    num_heads=[2, 4, 8],
    window_size=4,
    num_labels=10,
)
model = SwinForImageClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    pixels = torch.randn(batch_size, 3, image, image, device="cuda")
    labels = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = model(pixel_values=pixels, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
