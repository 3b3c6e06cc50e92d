import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class Words(nn.Module):
    def __init__(self, v=500, d=128):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(v, d), nn.LSTM(d, d, 2, batch_first=True), nn.Linear(d, v)
    def forward(self, i, state):
        y, state = self.r(self.e(i), state)
        return self.o(y), state
words = Words().to(device)
opt = torch.optim.Adam(words.parameters(), 1e-3)
text = torch.randint(0, 500, (16, 40 * 32 + 1))

# --- cell
state = None
total = 0.0
for i in range(0, 40 * 8, 32):
    x, y = text[:, i:i+32].to(device), text[:, i+1:i+33].to(device)
    out, state = words(x, state)
    state = tuple(s.detach() for s in state)
    loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(words.parameters(), 0.5)
    opt.step()
    total += loss.item()
