import torch
from torch import nn
from types import SimpleNamespace
def graph_batch():
    size = torch.randint(10, 30, (64,))
    n = int(size.sum())
    return SimpleNamespace(x=torch.rand(n, 7), edge_index=torch.randint(0, n, (2, 4 * n)),
                           batch=torch.arange(64).repeat_interleave(size), y=torch.randint(0, 2, (64,)), num_graphs=64)
train_loader = [graph_batch() for _ in range(5)]
lin1, lin2, head = nn.Linear(7, 64).cuda(), nn.Linear(64, 64).cuda(), nn.Linear(64, 2).cuda()
parameters = [*lin1.parameters(), *lin2.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=0.01)
# --- cell
def forward(data):
    row, col = data.edge_index.cuda()
    h = lin1(data.x.cuda()).relu()
    h = torch.zeros_like(h).index_add(0, col, h[row])
    h = lin2(h).relu()
    pooled = torch.zeros(data.num_graphs, 64, device="cuda").index_add(0, data.batch.cuda(), h)
    return head(nn.functional.dropout(pooled, 0.5))

total_loss = 0
for data in train_loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(forward(data), data.y.cuda())
    loss.backward()
    optimizer.step()
    total_loss += float(loss) * data.num_graphs
correct = 0
for data in train_loader:
    with torch.no_grad():
        pred = forward(data).argmax(dim=1)
    correct += int((pred == data.y.cuda()).sum())
print(total_loss, correct)
