import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = [(torch.randn(128, 64), torch.randint(0, 10, (128,))) for _ in range(4)]

# --- cell
@torch.no_grad()
def predict(x, times=4):
    model.eval()
    total = sum(F.softmax(model(x + 0.01 * torch.randn_like(x)), 1) for _ in range(times))
    return (total / times).argmax(1).cpu()

predictions = torch.cat([predict(x.to(device)) for x, _ in loader])
