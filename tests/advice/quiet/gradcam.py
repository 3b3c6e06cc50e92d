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
feats, grads = [], []
h1 = net.conv2.register_forward_hook(lambda m, i, o: feats.append(o))
h2 = net.conv2.register_full_backward_hook(lambda m, gi, go: grads.append(go[0]))
net.eval()
x = images[:32].to(device)
scores = net(x)
top = scores.argmax(1)
net.zero_grad()
scores.gather(1, top[:, None]).sum().backward()
weights = grads[0].mean(dim=(2, 3), keepdim=True)
cam = F.relu((weights * feats[0]).sum(1)).detach()
cam = cam / cam.amax(dim=(1, 2), keepdim=True)
h1.remove(); h2.remove()
