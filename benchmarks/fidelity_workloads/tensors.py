# Tensor work without a network: distances, sorting, scans, scatter, gather, one-hot, einsum.
import torch
import torch.nn.functional as F

points = 8192
features = 64
classes = 50

x = torch.randn(points, features, device="cuda")
distances = torch.cdist(x, x[: points // 4])
nearest, which = distances.topk(16, largest=False)
ranked, order = distances[:, 0].sort(descending=True)
del distances
total = x.cumsum(0)
middle = x.median(dim=0).values
spread = x.std(0) + x.var(1, keepdim=True).mean()
labels = torch.randint(0, classes, (points,), device="cuda")
hot = F.one_hot(labels, num_classes=classes).float()
sums = torch.zeros(classes, features, device="cuda").index_add_(0, labels, x)
counts = torch.zeros(classes, device="cuda").scatter_add_(0, labels, torch.ones_like(x[:, 0]))
centers = sums / counts.clamp(min=1)[:, None]
x = x - centers[labels]
covariance = torch.einsum("ni,nj->ij", x, x) / points
picked = x[which].mean(1)
grid = torch.stack(torch.meshgrid(torch.arange(512), torch.arange(512), indexing="ij")).cuda()
waves = (grid.float().mean(0)[None] * torch.arange(1, 9, device="cuda")[:, None, None]).sin()
waves[waves < 0] = 0
padded = F.pad(waves, (8, 8, 8, 8))
patches = padded.unfold(1, 16, 16).unfold(2, 16, 16).reshape(8, -1, 256)
