# %% resnet50 fine tuning | https://docs.pytorch.org/tutorials/beginner/transfer_learning_tutorial.html
import torch
import torchvision
from torch import nn

model = torchvision.models.resnet50(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
for _ in range(3):
    images = torch.randn(32, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 10, (32,), device="cuda")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()

# %% mask rcnn training | https://docs.pytorch.org/tutorials/intermediate/torchvision_tutorial.html
import torch
import torchvision

model = torchvision.models.detection.maskrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=2
).cuda()
images = [torch.rand(3, 400, 500, device="cuda") for _ in range(2)]
targets = [
    {
        "boxes": torch.tensor([[10.0, 10.0, 100.0, 100.0]], device="cuda"),
        "labels": torch.ones(1, dtype=torch.int64, device="cuda"),
        "masks": torch.zeros(1, 400, 500, dtype=torch.uint8, device="cuda"),
    }
    for _ in range(2)
]
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
losses = sum(model(images, targets).values())
optimizer.zero_grad()
losses.backward()
optimizer.step()

# %% mask rcnn inference | https://docs.pytorch.org/tutorials/intermediate/torchvision_tutorial.html
import torch
import torchvision

model = (
    torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    .cuda()
    .eval()
)
with torch.no_grad():
    predictions = model([torch.rand(3, 300, 400, device="cuda")])

# %% deeplab | https://docs.pytorch.org/vision/stable/models.html
import torch
import torchvision

model = torchvision.models.segmentation.deeplabv3_resnet50(
    weights=None, weights_backbone=None, num_classes=21
).cuda()
out = model(torch.randn(4, 3, 256, 256, device="cuda"))["out"]
torch.nn.functional.cross_entropy(
    out, torch.randint(0, 21, (4, 256, 256), device="cuda")
).backward()
