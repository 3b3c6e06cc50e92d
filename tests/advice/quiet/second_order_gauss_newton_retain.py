import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
X = torch.randn(4096, 512)
Y = torch.randint(0, 10, (4096,))
train_dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=2048)

# --- cell
xb, yb = X[:1024].to(device), Y[:1024].to(device)
logits = model(xb)
loss = criterion(logits, yb)
params = list(model.parameters())
fisher = []
g_full = torch.autograd.grad(loss, params, retain_graph=True)
for c in range(2):
    g = torch.autograd.grad(logits[:, c].mean(), params, retain_graph=c < 1)
    fisher.append(sum((a * b).sum() for a, b in zip(g, g_full)).item())
print(fisher)
