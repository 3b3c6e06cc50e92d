# ConvNeXt with stochastic depth, float32; AdamW.
import torch
from transformers import ConvNextConfig, ConvNextForImageClassification

batch_size = 8
image = 128

config = ConvNextConfig(
    hidden_sizes=[48, 96, 192, 384], depths=[2, 2, 3, 2], num_labels=10, drop_path_rate=0.1
)
model = ConvNextForImageClassification(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    pixels = torch.randn(batch_size, 3, image, image, device="cuda")
    labels = torch.randint(0, 10, (batch_size,), device="cuda")
    loss = model(pixel_values=pixels, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
