import math, sys, torch
from torch import nn
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
        self.cls, self.box = nn.Conv2d(64, 2, 1), nn.Conv2d(64, 4, 1)
    def forward(self, images, targets):
        f = self.body(torch.stack(images))
        return {"loss_classifier": self.cls(f).pow(2).mean(), "loss_box_reg": (self.box(f).mean((2, 3)) - torch.stack([t["boxes"] for t in targets])).abs().mean()}
model = Detector().cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.005, momentum=0.9, weight_decay=0.0005)
data_loader = [([torch.randn(3, 96, 96) for _ in range(4)], [{"boxes": torch.rand(4)} for _ in range(4)]) for _ in range(4)]
# --- cell
def reduce_dict(losses):
    with torch.no_grad():
        return {k: v.clone() for k, v in losses.items()}

model.train()
for images, targets in data_loader:
    images = list(image.to("cuda") for image in images)
    targets = [{k: v.to("cuda") for k, v in t.items()} for t in targets]
    loss_dict = model(images, targets)
    losses = sum(loss for loss in loss_dict.values())
    loss_dict_reduced = reduce_dict(loss_dict)
    loss_value = sum(loss_dict_reduced.values()).item()
    if not math.isfinite(loss_value):
        sys.exit(1)
    optimizer.zero_grad()
    losses.backward()
    optimizer.step()
