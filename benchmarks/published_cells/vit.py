# Fine-tuning timm's ViT in float32 under bf16 autocast, with one of four AdamW.
import torch
import torch.nn.functional as F
import timm

huge = 1
optimizer_kind = 0
batch_size = 8
steps = 2

model = timm.create_model(
    "vit_huge_patch14_224" if huge else "vit_base_patch16_224", num_classes=45
).to("cuda")
if optimizer_kind == 0:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
elif optimizer_kind == 1:
    import bitsandbytes

    optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=1e-4, weight_decay=0)
else:
    from torchao import optim

    kind = optim.AdamW8bit if optimizer_kind == 2 else optim.AdamW4bit
    optimizer = kind(model.parameters(), lr=1e-4, weight_decay=0)
model.train()
for step in range(steps):
    images = torch.randn(batch_size, 3, 224, 224)
    labels = torch.randint(0, 45, (batch_size,))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(images.to("cuda")), labels.to("cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
