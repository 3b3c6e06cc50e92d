import torch
from torch import nn
class Seq2Seq(nn.Module):
    def __init__(self, vocab=500, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.transformer = nn.Transformer(dim, 4, 2, 2, 256, batch_first=True)
        self.generator = nn.Linear(dim, vocab)
    def forward(self, src, tgt, mask):
        return self.generator(self.transformer(self.embed(src), self.embed(tgt), tgt_mask=mask))
model = Seq2Seq().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
pairs = [(torch.randint(0, 500, (32, 20)), torch.randint(0, 500, (32, 22))) for _ in range(4)]
loss_fn = nn.CrossEntropyLoss(ignore_index=1)
# --- cell
model.train()
losses = 0
for src, tgt in pairs:
    src, tgt = src.cuda(), tgt.cuda()
    tgt_input = tgt[:, :-1]
    mask = nn.Transformer.generate_square_subsequent_mask(tgt_input.shape[1], device="cuda")
    logits = model(src, tgt_input, mask)
    optimizer.zero_grad()
    loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    losses += loss.item()
print(losses / len(pairs))
