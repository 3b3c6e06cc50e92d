import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [(torch.rand(64, 1, 28, 28), torch.randint(0, 10, (64,))) for _ in range(6)]
# --- cell
def pgd(model, x, y, eps=0.3, alpha=0.01, steps=7):
    delta = torch.empty_like(x).uniform_(-eps, eps)
    for _ in range(steps):
        delta.requires_grad_(True)
        loss = F.cross_entropy(model(x + delta), y)
        grad, = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + alpha * grad.sign()).clamp(-eps, eps)
    return (x + delta).clamp(0, 1).detach()

for x, y in batches:
    x, y = x.cuda(), y.cuda()
    adversarial = pgd(model, x, y)
    loss = F.cross_entropy(model(adversarial), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"robust loss {loss.item():.3f}")
