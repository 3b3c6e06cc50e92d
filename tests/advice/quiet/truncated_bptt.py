import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"


class CharRNN(nn.Module):
    def __init__(self, vocab=200, dim=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.embed(ids), h)
        return self.out(y), h


lm = CharRNN().to(device)
opt = torch.optim.Adam(lm.parameters(), lr=1e-3)
ids = torch.randint(0, 200, (32, 129), device=device)

# --- cell
h = None
for start in range(0, 128, 32):
    part, goal = ids[:, start : start + 32], ids[:, start + 1 : start + 33]
    logits, h = lm(part, h)
    h = h.detach()
    loss = F.cross_entropy(logits.flatten(0, 1), goal.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
opt.zero_grad()
