import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class GraphConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, edge_index):
        row, col = edge_index
        out = torch.zeros(len(x), self.lin.out_features, device=x.device)
        return out.index_add_(0, col, self.lin(x)[row])

class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GraphConv(64, 16), GraphConv(16, 7)

    def forward(self, x, edge_index):
        x = F.dropout(F.relu(self.conv1(x, edge_index)), training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=1)

x = torch.randn(2000, 64).to(device)
edge_index = torch.randint(0, 2000, (2, 8000)).to(device)
y = torch.randint(0, 7, (2000,)).to(device)
train_mask = torch.rand(2000).to(device) < 0.5
model = GCN().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)

# --- cell
model.train()
for epoch in range(5):
    optimizer.zero_grad()
    out = model(x, edge_index)
    loss = F.nll_loss(out[train_mask], y[train_mask])
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    pred = model(x, edge_index).argmax(dim=1)
accuracy = int((pred == y).sum()) / len(y)
