import torch
from torch import nn
class Embeddings(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.segments = nn.Embedding(2000, 512), nn.Embedding(2, 512)
        self.norm = nn.LayerNorm(512)
    def forward(self, ids, segment):
        words, segments = self.words(ids), self.segments(segment)
        return self.norm(words + segments)
class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = Embeddings()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4))
        self.head = nn.Linear(512, 2)
    def forward(self, ids, segment):
        h = self.embeddings(ids, segment)
        for layer in self.layers:
            h = layer(h)
        return self.head(h[:, 0])
batches = [(torch.randint(0, 2000, (64, 64)), torch.randint(0, 2, (64, 64)), torch.randint(0, 2, (64,)))
           for _ in range(3)]
# --- cell
model = Pairs().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for ids, segment, label in batches:
    loss = nn.functional.cross_entropy(model(ids.cuda(), segment.cuda()), label.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
