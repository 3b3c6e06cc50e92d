import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

base = F.normalize(torch.randn(20_000, 64, device=device), dim=1)
asked = F.normalize(torch.randn(1000, 64, device=device), dim=1)

# --- cell
scores, found = [], []
with torch.no_grad():
    for part in asked.split(100):
        s, i = (part @ base.T).topk(10, dim=1)
        scores.append(s.cpu())
        found.append(i.cpu())
scores, found = torch.cat(scores), torch.cat(found)
