# %% contrastive step | https://github.com/mlfoundations/open_clip
import open_clip
import torch

model, _, preprocess = open_clip.create_model_and_transforms(
    "ViT-B-32", pretrained=None, device="cuda"
)
image = torch.randn(16, 3, 224, 224, device="cuda")
text = torch.randint(0, 49408, (16, 77), device="cuda")
image_features, text_features, scale = model(image, text)
loss = open_clip.ClipLoss()(image_features, text_features, scale)
loss.backward()

# %% training | https://github.com/mlfoundations/open_clip
import open_clip
import torch
from open_clip.loss import ClipLoss

model = open_clip.create_model("RN50", precision="amp", device="cuda")
model.set_grad_checkpointing()
opt = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), eps=1e-6)
loss = ClipLoss()
for _ in range(2):
    images, texts = (
        torch.randn(16, 3, 224, 224, device="cuda"),
        torch.randint(0, 49408, (16, 77), device="cuda"),
    )
    with torch.autocast("cuda"):
        i, t, scale = model(images, texts)
        total = loss(i, t, scale)
    opt.zero_grad()
    total.backward()
    opt.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
