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
cnn = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()).to(device).eval().requires_grad_(False)
content_img, style_img = torch.rand(1, 3, 128, 128, device=device), torch.rand(1, 3, 128, 128, device=device)

def gram_matrix(t):
    a, b, c, d = t.size()
    f = t.view(a * b, c * d)
    return torch.mm(f, f.t()).div(a * b * c * d)

class ContentLoss(nn.Module):
    def __init__(self, target):
        super().__init__()
        self.target = target.detach()
    def forward(self, x):
        self.loss = F.mse_loss(x, self.target)
        return x

class StyleLoss(nn.Module):
    def __init__(self, feature):
        super().__init__()
        self.target = gram_matrix(feature).detach()
    def forward(self, x):
        self.loss = F.mse_loss(gram_matrix(x), self.target)
        return x

m, content_losses, style_losses = nn.Sequential(), [], []
for i, layer in enumerate(cnn):
    m.add_module(str(i), layer if not isinstance(layer, nn.ReLU) else nn.ReLU(inplace=False))
    if isinstance(layer, nn.Conv2d):
        content_losses.append(ContentLoss(m(content_img)))
        m.add_module(f"c{i}", content_losses[-1])
        style_losses.append(StyleLoss(m(style_img)))
        m.add_module(f"s{i}", style_losses[-1])
input_img = content_img.clone().requires_grad_(True)
optimizer = torch.optim.LBFGS([input_img], max_iter=2)
run = [0]
while run[0] <= 3:
    def closure():
        with torch.no_grad():
            input_img.clamp_(0, 1)
        optimizer.zero_grad()
        m(input_img)
        style_score = sum(sl.loss for sl in style_losses) * 1e6
        content_score = sum(cl.loss for cl in content_losses)
        loss = style_score + content_score
        loss.backward()
        run[0] += 1
        return loss
    optimizer.step(closure)
with torch.no_grad():
    input_img.clamp_(0, 1)
