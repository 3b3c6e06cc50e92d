# A ConvLSTM predicts the next frames of a video, float32; Adam.
import torch
import torch.nn as nn

batch_size = 8
frames = 6
size = 64
hidden = 64


class ConvLSTMCell(nn.Module):
    def __init__(self, inputs, hidden, kernel=3):
        super().__init__()
        self.hidden = hidden
        self.gates = nn.Conv2d(inputs + hidden, 4 * hidden, kernel, padding=kernel // 2)

    def forward(self, x, state):
        h, c = state
        i, f, o, g = self.gates(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.cells = nn.ModuleList([ConvLSTMCell(1, hidden), ConvLSTMCell(hidden, hidden)])
        self.out = nn.Conv2d(hidden, 1, 1)

    def forward(self, video):
        shape = (video.shape[0], self.cells[0].hidden, *video.shape[-2:])
        states = [(video.new_zeros(shape), video.new_zeros(shape)) for _ in self.cells]
        frames = []
        for t in range(video.shape[1]):
            x = video[:, t]
            for k, cell in enumerate(self.cells):
                states[k] = cell(x, states[k])
                x = states[k][0]
            frames.append(self.out(x))
        return torch.stack(frames, dim=1)


model = Forecaster(hidden).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
video = torch.rand(batch_size, frames + 1, 1, size, size, device="cuda")
for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(video[:, :-1]), video[:, 1:])
    loss.backward()
    optimizer.step()
