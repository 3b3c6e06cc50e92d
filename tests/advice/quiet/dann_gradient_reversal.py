import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

class ConvNet(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, n)

    def features(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))

net = ConvNet().to(device)
images = torch.randn(64, 3, 32, 32)
labels = torch.randint(0, 10, (64,))
loader = [(images[i:i + 32], labels[i:i + 32]) for i in range(0, 64, 32)]

# --- cell
class ReverseLayerF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None

domain = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 2)).to(device)
opt = torch.optim.Adam([*net.parameters(), *domain.parameters()], lr=1e-3)
src_iter, tgt_iter = iter(loader), iter(loader)
for i in range(2):
    s, y = next(src_iter)
    t, _ = next(tgt_iter)
    net.zero_grad()
    domain.zero_grad()
    fs, ft = net.features(s.to(device)), net.features(t.to(device))
    err_label = F.cross_entropy(net.fc(fs), y.to(device))
    ds, dt = domain(ReverseLayerF.apply(fs, 0.5)), domain(ReverseLayerF.apply(ft, 0.5))
    err = err_label + F.cross_entropy(ds, torch.zeros(32, dtype=torch.long, device=device)) + F.cross_entropy(dt, torch.ones(32, dtype=torch.long, device=device))
    err.backward()
    opt.step()
