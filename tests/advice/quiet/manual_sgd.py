import math
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

x_train, y_train = torch.rand(8192, 784).to(device), torch.randint(0, 10, (8192,)).to(device)

# --- cell
weights = (torch.randn(784, 512, device=device) / math.sqrt(784)).requires_grad_()
bias = torch.zeros(512, requires_grad=True, device=device)
w2 = (torch.randn(512, 10, device=device) / math.sqrt(512)).requires_grad_()

def model(xb):
    return (xb @ weights + bias).relu() @ w2

bs, lr, n = 4096, 0.5, 8192
for epoch in range(2):
    for i in range((n - 1) // bs + 1):
        xb, yb = x_train[i * bs:i * bs + bs], y_train[i * bs:i * bs + bs]
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        with torch.no_grad():
            for p in (weights, bias, w2):
                p -= p.grad * lr
                p.grad.zero_()
print(loss)
