# Two epochs over a data set on the host, with validation; Adam and a schedule.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size = 256
hidden = 2048
examples = 1024

train_set = TensorDataset(torch.randn(examples, 100), torch.randint(0, 20, (examples,)))
valid_set = TensorDataset(torch.randn(examples // 4, 100), torch.randint(0, 20, (examples // 4,)))
train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=batch_size)

model = nn.Sequential(
    nn.Linear(100, hidden), nn.BatchNorm1d(hidden), nn.GELU(),
    nn.Linear(hidden, hidden), nn.LayerNorm(hidden), nn.SiLU(),
    nn.Linear(hidden, 20),
).cuda()  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
for epoch in range(2):
    model.train()
    for x, y in train_loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    correct = torch.zeros((), device="cuda")
    with torch.no_grad():
        for x, y in valid_loader:
            correct += (model(x.cuda()).argmax(1) == y.cuda()).sum()
