import torch
from torch import nn
torch.manual_seed(0)
vocabulary, block, width = 65, 128, 128
class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block, width)
        self.head = nn.Linear(width, vocabulary)
    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        return self.head(torch.relu(x))
model = CharModel().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# --- cell
for step in range(3):
    ids = torch.randint(0, vocabulary, (128, block), device="cuda")
    logits = model(ids)
    loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
print(loss.item())
