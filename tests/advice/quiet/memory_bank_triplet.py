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
class XBM:
    def __init__(self, size=4096, dim=256):
        self.feats = torch.zeros(size, dim, device=device)
        self.targets = torch.full((size,), -1, device=device)
        self.ptr = 0
    def enqueue(self, f, t):
        n = len(f)
        self.feats[self.ptr:self.ptr + n] = f.detach()
        self.targets[self.ptr:self.ptr + n] = t
        self.ptr = (self.ptr + n) % len(self.feats)

emb = ConvNet(256).to(device)
xbm = XBM()
opt = torch.optim.Adam(emb.parameters(), lr=1e-4)
for im, lb in loader:
    im, lb = im.to(device), lb.to(device)
    f = F.normalize(emb(im), dim=1)
    xbm.enqueue(f, lb)
    sim = f @ xbm.feats.T
    pos = (lb[:, None] == xbm.targets[None]) & (sim < 1 - 1e-5)
    neg = (lb[:, None] != xbm.targets[None]) & (sim > 0.5)
    loss = ((1 - sim) * pos).sum() / len(lb) + (sim * neg).sum() / len(lb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
