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
@torch.no_grad()
def sample(model, start, n):
    model.eval()
    token, h, out = start, None, []
    for _ in range(n):
        logits, h = model(token, h)
        token = logits[:, -1:].argmax(-1)
        out.append(token)
    return torch.cat(out, 1)


text = sample(lm, ids[:, :1], 20).cpu()
text[0]
