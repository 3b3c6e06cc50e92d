import torch
from torch import nn
import torch.nn.functional as F
n, edges = 2708, torch.randint(0, 2708, (2, 10556))
x, y = torch.rand(n, 1433).cuda(), torch.randint(0, 7, (n,)).cuda()
edge_index = edges.cuda()
train_mask, test_mask = torch.rand(n).cuda() < 0.1, torch.rand(n).cuda() < 0.4
class GCNConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o, bias=False)
    def forward(self, x, edge_index):
        x = self.lin(x)
        row, col = edge_index
        deg = torch.zeros(x.size(0), device=x.device).index_add_(0, col, torch.ones_like(col, dtype=x.dtype))
        norm = deg.clamp(min=1).pow(-0.5)
        message = x[row] * (norm[row] * norm[col])[:, None]
        return torch.zeros_like(x).index_add_(0, col, message)
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(1433, 16), GCNConv(16, 7)
    def forward(self, x, edge_index):
        x = F.dropout(self.conv1(x, edge_index).relu(), p=0.5, training=self.training)
        return self.conv2(x, edge_index)
model = GCN().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
criterion = nn.CrossEntropyLoss()
# --- cell
def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = criterion(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
    return loss

@torch.no_grad()
def test():
    model.eval()
    pred = model(x, edge_index).argmax(dim=1)
    return int((pred[test_mask] == y[test_mask]).sum()) / int(test_mask.sum())

for epoch in range(1, 6):
    loss = train()
    test_acc = test()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}, Test: {test_acc:.4f}")
