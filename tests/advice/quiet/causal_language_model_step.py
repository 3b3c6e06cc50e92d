import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class Decoder(nn.Module):
    def __init__(self, vocabulary=800, d=64):
        super().__init__()
        self.emb, self.qkv = nn.Embedding(vocabulary, d), nn.Linear(d, 3 * d)
        self.head = nn.Linear(d, vocabulary)

    def forward(self, ids):
        q, k, v = (t.unsqueeze(1) for t in self.qkv(self.emb(ids)).chunk(3, -1))
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))

lm = Decoder().to(device)
optimizer = torch.optim.AdamW(lm.parameters(), lr=3e-4)

# --- cell
lm.train()
for step in range(3):
    ids = torch.randint(0, 800, (8, 128), device=device)
    logits = lm(ids[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    optimizer.step()
perplexity = loss.detach().exp().item()
