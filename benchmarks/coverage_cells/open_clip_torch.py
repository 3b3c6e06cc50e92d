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
