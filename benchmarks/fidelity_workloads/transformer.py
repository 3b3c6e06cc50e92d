# nn.Transformer translates: encoder, decoder, causal and padding masks; Adam.
import torch
from torch import nn

batch_size = 32
length = 128
width = 512
layers = 6
vocabulary = 10000


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(vocabulary, width), nn.Embedding(vocabulary, width)
        self.transformer = nn.Transformer(width, 8, layers, layers, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device="cuda")
        out = self.transformer(
            self.source(source), self.target(target), tgt_mask=mask,
            src_key_padding_mask=source == 0, tgt_is_causal=True,
        )  # fmt: skip
        return self.head(out)


model = Translator().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
criterion = nn.CrossEntropyLoss(ignore_index=0)
for _ in range(2):
    source = torch.randint(1, vocabulary, (batch_size, length))
    source[:, length * 3 // 4 :] = 0
    target = torch.randint(1, vocabulary, (batch_size, length + 1))
    source, target = source.cuda(), target.cuda()
    logits = model(source, target[:, :-1])
    loss = criterion(logits.transpose(1, 2), target[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
