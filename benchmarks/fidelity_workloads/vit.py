# ViT of transformers (the base one at full size), autocast to float16; AdamW, label smoothing.
import torch
from transformers import ViTConfig, ViTForImageClassification

batch_size = 32
image = 224
layers = 12
width = 768

config = ViTConfig(
    image_size=image,
    num_hidden_layers=layers,
    hidden_size=width,
    num_attention_heads=width // 64,
    intermediate_size=4 * width,
    num_labels=100,
)
model = ViTForImageClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.05)
criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    images = torch.randn(batch_size, 3, image, image, device="cuda")
    labels = torch.randint(0, 100, (batch_size,), device="cuda")
    optimizer.zero_grad()
    with torch.autocast(device_type="cuda", dtype=torch.float16):
        loss = criterion(model(pixel_values=images).logits, labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
