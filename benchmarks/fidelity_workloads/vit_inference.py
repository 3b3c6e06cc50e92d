# ViT's features of many images, without gradients; kept in a list and joined.
import torch
from transformers import ViTConfig, ViTModel

batch_size = 64
image = 224
layers = 12
width = 768
batches = 4

config = ViTConfig(
    image_size=image, num_hidden_layers=layers, hidden_size=width,
    num_attention_heads=width // 64, intermediate_size=4 * width,
)  # fmt: skip
model = ViTModel(config).to("cuda").eval()
features = []
for _ in range(batches):
    with torch.no_grad():
        images = torch.rand(batch_size, 3, image, image, device="cuda")
        features.append(model(pixel_values=images).last_hidden_state.mean(1))
features = torch.nn.functional.normalize(torch.cat(features), dim=-1)
similarity = features @ features.T
