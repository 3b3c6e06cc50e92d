import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

online = nn.Sequential(nn.Linear(256, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128)).to(device)
predictor = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to(device)
target = copy.deepcopy(online).requires_grad_(False)
opt = torch.optim.SGD([*online.parameters(), *predictor.parameters()], 0.05, momentum=0.9)
data = torch.randn(20, 512, 256)

# --- cell
history = []
for x in data:
    x = x.to(device)
    one, two = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    p1, p2 = predictor(online(one)), predictor(online(two))
    with torch.no_grad():
        t1, t2 = target(one), target(two)
    loss = 4 - 2 * (F.cosine_similarity(p1, t2).mean() + F.cosine_similarity(p2, t1).mean())
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters()):
            old.lerp_(new, 0.01)
    history.append(loss.item())
