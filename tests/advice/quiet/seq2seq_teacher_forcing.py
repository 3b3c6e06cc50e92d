import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class Seq2Seq(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(500, 64)
        self.enc, self.dec = nn.GRU(64, 64, batch_first=True), nn.GRU(64, 64, batch_first=True)
        self.out = nn.Linear(64, 500)

    def forward(self, source, target):
        _, hidden = self.enc(self.emb(source))
        token, outputs = target[:, :1], []
        for i in range(target.size(1)):
            output, hidden = self.dec(self.emb(token), hidden)
            outputs.append(self.out(output))
            token = target[:, i : i + 1]
        return torch.cat(outputs, dim=1)

model = Seq2Seq().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pairs = [(torch.randint(0, 500, (16, 12)), torch.randint(0, 500, (16, 10))) for _ in range(3)]

# --- cell
total_loss = 0
for source, target in pairs:
    source, target = source.to(device), target.to(device)
    optimizer.zero_grad()
    decoded = model(source, target)
    loss = F.nll_loss(F.log_softmax(decoded, -1).view(-1, 500), target.view(-1))
    loss.backward()
    optimizer.step()
    total_loss += loss.item()
