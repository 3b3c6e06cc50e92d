import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

class RNNModel(nn.Module):
    def __init__(self, v=1000, d=128):
        super().__init__()
        self.encoder = nn.Embedding(v, d)
        self.rnn = nn.LSTM(d, d, 2)
        self.decoder = nn.Linear(d, v)
        self.d = d
    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encoder(x), hidden)
        return F.log_softmax(self.decoder(out).view(-1, 1000), dim=1), hidden
    def init_hidden(self, n):
        w = next(self.parameters())
        return w.new_zeros(2, n, self.d), w.new_zeros(2, n, self.d)
model = RNNModel().to(device)
data = torch.randint(0, 1000, (351, 20)).to(device)
criterion = nn.NLLLoss()

# --- cell
def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)
def train(bptt=35, lr=20):
    model.train()
    total_loss = 0.
    hidden = model.init_hidden(20)
    for i in range(0, data.size(0) - 1, bptt):
        x, y = data[i:i + bptt], data[i + 1:i + 1 + bptt].view(-1)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(x, hidden)
        loss = criterion(output, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total_loss += loss.item()
    return total_loss
train()
