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

# %% raft flow | https://docs.pytorch.org/vision/main/auto_examples/others/plot_optical_flow.html
import torch
from torchvision.models.optical_flow import raft_small

model = raft_small(weights=None, progress=False).to("cuda").eval()
a, b = (torch.rand(1, 3, 256, 384, device="cuda") * 2 - 1 for _ in range(2))
with torch.no_grad():
    list_of_flows = model(a, b)
print(len(list_of_flows), list_of_flows[-1].shape)

# %% transforms v2 on gpu | https://docs.pytorch.org/vision/main/auto_examples/transforms/plot_cutmix_mixup.html
import torch
from torchvision.transforms import v2
from torchvision.models import efficientnet_v2_s

transforms = v2.Compose(
    [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(p=0.5),
        v2.ColorJitter(0.4, 0.4, 0.4),
        v2.RandomErasing(),
        v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
cutmix_or_mixup = v2.RandomChoice([v2.CutMix(num_classes=100), v2.MixUp(num_classes=100)])
model = efficientnet_v2_s(num_classes=100).cuda()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(2):
    images = transforms(torch.rand(16, 3, 256, 256, device="cuda"))
    images, labels = cutmix_or_mixup(images, torch.randint(0, 100, (16,), device="cuda"))
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    opt.zero_grad()
    loss.backward()
    opt.step()

# %% keypoint rcnn | https://docs.pytorch.org/vision/stable/models/keypoint_rcnn.html
import torch
from torchvision.models.detection import keypointrcnn_resnet50_fpn

m = keypointrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=2, num_keypoints=17
).cuda()
t = [
    {
        "boxes": torch.tensor([[10.0, 10.0, 100.0, 100.0]], device="cuda"),
        "labels": torch.tensor([1], device="cuda"),
        "keypoints": torch.rand(1, 17, 3, device="cuda") * 90,
    }
]
sum(m([torch.rand(3, 200, 260, device="cuda")], t).values()).backward()
