import torch
from torch import nn
class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(1000, 128), nn.LSTM(128, 128, 2), nn.Linear(128, 1000)
    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(output).view(-1, 1000), hidden
    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(2, bsz, 128), weight.new_zeros(2, bsz, 128))
model = RNNModel().cuda()
source = torch.randint(0, 1000, (200, 20)).cuda()
criterion = nn.CrossEntropyLoss()
# --- cell
def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)

model.train()
total_loss, lr = 0.0, 20
hidden = model.init_hidden(20)
for i in range(0, source.size(0) - 1, 35):
    seq_len = min(35, len(source) - 1 - i)
    data, targets = source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    total_loss += loss.item()
