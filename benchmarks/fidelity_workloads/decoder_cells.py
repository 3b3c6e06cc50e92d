# A decoder out of LSTMCell, GRUCell and RNNCell with attention, float32; Adadelta.
import torch
import torch.nn as nn

batch_size = 64
steps = 20
width = 256


class Decoder(nn.Module):
    def __init__(self, width, words=1000):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.cell = nn.LSTMCell(2 * width, width)
        self.second = nn.GRUCell(width, width)
        self.third = nn.RNNCell(width, width)
        self.attend = nn.Linear(width, width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, memory, tokens):
        h = c = g = r = memory.new_zeros(memory.size(0), memory.size(2))
        logits = []
        for t in range(tokens.size(1)):
            weight = torch.bmm(memory, self.attend(r).unsqueeze(2)).softmax(1)
            context = (weight * memory).sum(1)
            h, c = self.cell(torch.cat([self.embed(tokens[:, t]), context], 1), (h, c))
            g = self.second(h, g)
            r = self.third(g, r)
            logits.append(self.out(torch.cat([r, context], 1)))
        return torch.stack(logits, 1)


model = Decoder(width).cuda()
optimizer = torch.optim.Adadelta(model.parameters())
memory = torch.randn(batch_size, 30, width, device="cuda")
tokens = torch.randint(0, 1000, (batch_size, steps + 1), device="cuda")
for step in range(3):
    logits = model(memory, tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
