import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
loader = [(torch.randn(128, 64), torch.randint(0, 10, (128,))) for _ in range(4)]

# --- cell
running_loss, last_loss = 0.0, 0.0
for i, (inputs, labels) in enumerate(loader):
    inputs, labels = inputs.to(device), labels.to(device)
    optimizer.zero_grad()
    outputs = model(inputs)
    loss = F.cross_entropy(outputs, labels)
    loss.backward()
    optimizer.step()
    running_loss += loss.item()
    if i % 2 == 1:
        last_loss, running_loss = running_loss / 2, 0.0
