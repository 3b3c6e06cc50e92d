import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence
sequences = [torch.randint(1, 300, (int(n),)) for n in torch.randint(5, 80, (60,))]
labels = torch.randint(0, 2, (60,))
def collate(items):
    items.sort(key=lambda one: -len(one[0]))
    x, y = zip(*items)
    return pad_sequence(x, batch_first=True), torch.tensor([len(i) for i in x]), torch.stack(y)
loader = DataLoader(list(zip(sequences, labels)), batch_size=32, shuffle=True, collate_fn=collate)
class Classify(nn.Module):
    def __init__(self):
        super().__init__()
        self.e, self.r, self.o = nn.Embedding(300, 64, padding_idx=0), nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 2)
    def forward(self, x, n):
        _, (h, _) = self.r(pack_padded_sequence(self.e(x), n, batch_first=True))
        return self.o(h[-1])

# --- cell
model = Classify().to(device)
opt = torch.optim.Adam(model.parameters())
for epoch in range(2):
    right = seen = 0
    for x, n, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x, n)
        loss = F.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        right += (out.argmax(1) == y).sum().item()
        seen += len(y)
    print(epoch, right / seen)
