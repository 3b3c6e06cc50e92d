# A language model out of an LSTM with dropout, truncated backpropagation and clipping; AdamW.
import torch
from torch import nn

batch_size = 64
length = 128
width = 1024
layers = 2
vocabulary = 10000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.3, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids, state):
        out, state = self.lstm(self.token(ids), state)
        return self.head(out), state


model = Model().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
state = None
for _ in range(3):
    ids = torch.randint(0, vocabulary, (batch_size, length + 1), device="cuda")
    if state is not None:
        state = tuple(part.detach() for part in state)
    logits, state = model(ids[:, :-1], state)
    loss = nn.functional.cross_entropy(logits.reshape(-1, vocabulary), ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
