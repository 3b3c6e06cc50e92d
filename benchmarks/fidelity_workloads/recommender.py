# Large embeddings and a small network on top: recommendation with negative samples; Adagrad.
import torch
import torch.nn.functional as F
from torch import nn

batch_size = 4096
users = 200_000
items = 100_000
width = 64
negatives = 4

user_table = nn.Embedding(users, width).cuda()
item_table = nn.Embedding(items, width).cuda()
bags = nn.EmbeddingBag(items, width, mode="mean").cuda()
mlp = nn.Sequential(nn.Linear(3 * width, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
modules = nn.ModuleList([user_table, item_table, bags, mlp])
optimizer = torch.optim.Adagrad(modules.parameters(), lr=0.01)
for _ in range(2):
    user = torch.randint(0, users, (batch_size, 1), device="cuda")
    item = torch.randint(0, items, (batch_size, 1 + negatives), device="cuda")
    past = torch.randint(0, items, (batch_size, 20), device="cuda")
    u = user_table(user).expand(-1, 1 + negatives, -1)
    h = bags(past).unsqueeze(1).expand(-1, 1 + negatives, -1)
    scores = mlp(torch.cat([u, item_table(item), h], dim=-1)).squeeze(-1)
    label = torch.zeros_like(scores)
    label[:, 0] = 1
    loss = F.binary_cross_entropy_with_logits(scores, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
