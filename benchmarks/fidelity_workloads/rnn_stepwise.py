# GRU, LSTM and RNN without cuDNN, second derivatives, float32; Adam.
import torch
import torch.nn as nn

batch_size = 16
steps = 20
width = 128

torch.backends.cudnn.enabled = False
rnn = nn.GRU(width, width, 2, bidirectional=True, batch_first=True, dropout=0.2).cuda()
lstm = nn.LSTM(2 * width, width).cuda()
plain = nn.RNN(width, width, 2, nonlinearity="relu", bias=False).cuda()
optimizer = torch.optim.Adam([*rnn.parameters(), *lstm.parameters(), *plain.parameters()])
for step in range(2):
    x = torch.randn(batch_size, steps, width, device="cuda", requires_grad=True)
    out = plain(lstm(rnn(x)[0])[0])[0].mean()
    (g,) = torch.autograd.grad(out, x, create_graph=True)
    optimizer.zero_grad()
    (out + ((g.norm(2, dim=(1, 2)) - 1) ** 2).mean()).backward()
    optimizer.step()
