# A GRU forecasts a series step by step from its own answers, in float32; Adam. Then inference.
import torch
from torch import nn

batch_size = 256
length = 96
width = 256
horizon = 12

rnn = nn.GRU(8, width, 2).cuda()
cell = nn.GRUCell(8, width).cuda()
head = nn.Linear(width, 8).cuda()
parameters = [*rnn.parameters(), *cell.parameters(), *head.parameters()]
optimizer = torch.optim.Adam(parameters, lr=1e-3)


def forecast(past):
    out, hidden = rnn(past)
    state, last, answers = hidden[-1], past[-1], []
    for _ in range(horizon):
        state = cell(last, state)
        last = head(state)
        answers.append(last)
    return torch.stack(answers)


for _ in range(3):
    series = torch.randn(length + horizon, batch_size, 8, device="cuda")
    loss = nn.functional.huber_loss(forecast(series[:length]), series[length:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
rnn.eval()
with torch.no_grad():
    future = forecast(torch.randn(length, 4 * batch_size, 8, device="cuda"))
