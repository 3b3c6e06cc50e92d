# %% gcn cora shaped | https://pytorch-geometric.readthedocs.io/en/latest/get_started/introduction.html
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv


class GCN(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GCNConv(1433, 16)
        self.conv2 = GCNConv(16, 7)

    def forward(self, data):
        x = F.relu(self.conv1(data.x, data.edge_index))
        x = F.dropout(x, training=self.training)
        return F.log_softmax(self.conv2(x, data.edge_index), dim=1)


data = Data(
    x=torch.randn(2708, 1433),
    edge_index=torch.randint(0, 2708, (2, 10556)),
    y=torch.randint(0, 7, (2708,)),
    train_mask=torch.arange(2708) < 140,
).to("cuda")
model = GCN().to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
model.train()
for epoch in range(20):
    optimizer.zero_grad()
    out = model(data)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()

# %% graph classification | https://pytorch-geometric.readthedocs.io/en/latest/get_started/colabs.html
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GraphConv, global_mean_pool

graphs = [
    Data(x=torch.randn(30, 7), edge_index=torch.randint(0, 30, (2, 66)), y=torch.tensor([i % 2]))
    for i in range(64)
]
batch = Batch.from_data_list(graphs).to("cuda")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GraphConv(7, 64), GraphConv(64, 64)
        self.lin = torch.nn.Linear(64, 2)

    def forward(self, x, edge_index, batch):
        x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return self.lin(global_mean_pool(x, batch, size=64))


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(5):
    loss = torch.nn.functional.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% gat | https://github.com/pyg-team/pytorch_geometric/blob/master/examples/gat.py
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv


class GAT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = GATConv(500, 8, heads=8, dropout=0.6)
        self.conv2 = GATConv(64, 3, heads=1, concat=False, dropout=0.6)

    def forward(self, x, edge_index):
        x = F.elu(self.conv1(F.dropout(x, 0.6, self.training), edge_index))
        return self.conv2(F.dropout(x, 0.6, self.training), edge_index)


model = GAT().cuda()
x = torch.randn(19717, 500, device="cuda")
edges = torch.randint(0, 19717, (2, 88648), device="cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
for _ in range(3):
    optimizer.zero_grad()
    F.cross_entropy(model(x, edges), torch.zeros(19717, dtype=torch.long, device="cuda")).backward()
    optimizer.step()

# %% link prediction | https://github.com/pyg-team/pytorch_geometric/blob/master/examples/link_pred.py
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import negative_sampling

device = torch.device("cuda")
x = torch.randn(2708, 1433)
edge_index = torch.randint(0, 2708, (2, 9000))
data = Data(x=x, edge_index=edge_index).to(device)


class Net(torch.nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.conv1 = GCNConv(i, h)
        self.conv2 = GCNConv(h, o)

    def encode(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def decode(self, z, edge_label_index):
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)


model = Net(1433, 128, 64).to(device)
optimizer = torch.optim.Adam(params=model.parameters(), lr=0.01)
criterion = torch.nn.BCEWithLogitsLoss()
for epoch in range(3):
    model.train()
    optimizer.zero_grad()
    z = model.encode(data.x, data.edge_index)
    neg = negative_sampling(
        edge_index=data.edge_index,
        num_nodes=data.num_nodes,
        num_neg_samples=data.edge_index.size(1),
        method="sparse",
    )
    index = torch.cat([data.edge_index, neg], dim=-1)
    labels = torch.cat([torch.ones(data.edge_index.size(1)), torch.zeros(neg.size(1))]).to(device)
    loss = criterion(model.decode(z, index).view(-1), labels)
    loss.backward()
    optimizer.step()
    print(f"Epoch: {epoch:03d}, Loss: {loss:.4f}")

# %% hetero conv | https://pytorch-geometric.readthedocs.io/en/latest/tutorial/heterogeneous.html
import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import GATConv, HeteroConv, Linear, SAGEConv, to_hetero, HGTConv

data = HeteroData()
data["paper"].x = torch.randn(3000, 128)
data["author"].x = torch.randn(2000, 64)
data["paper"].y = torch.randint(0, 4, (3000,))
data["author", "writes", "paper"].edge_index = torch.stack(
    [torch.randint(0, 2000, (9000,)), torch.randint(0, 3000, (9000,))]
)
data["paper", "rev_writes", "author"].edge_index = data[
    "author", "writes", "paper"
].edge_index.flip(0)
data["paper", "cites", "paper"].edge_index = torch.randint(0, 3000, (2, 12000))
data = data.to("cuda")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [
                HeteroConv(
                    {
                        ("paper", "cites", "paper"): SAGEConv(-1, 64),
                        ("author", "writes", "paper"): GATConv((-1, -1), 64, add_self_loops=False),
                        ("paper", "rev_writes", "author"): SAGEConv((-1, -1), 64),
                    },
                    aggr="sum",
                )
                for _ in range(2)
            ]
        )
        self.lin = Linear(64, 4)

    def forward(self, x, e):
        for c in self.convs:
            x = {k: v.relu() for k, v in c(x, e).items()}
        return self.lin(x["paper"])


model = Net().cuda()
with torch.no_grad():
    model(data.x_dict, data.edge_index_dict)
opt = torch.optim.Adam(model.parameters(), 0.005)
for _ in range(2):
    loss = F.cross_entropy(model(data.x_dict, data.edge_index_dict), data["paper"].y)
    opt.zero_grad()
    loss.backward()
    opt.step()
hgt = HGTConv({"paper": 128, "author": 64}, 64, data.metadata(), heads=4).cuda()
hgt(data.x_dict, data.edge_index_dict)
