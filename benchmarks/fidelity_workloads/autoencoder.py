# A convolutional autoencoder with the mean absolute error; Adam.
import torch
from torch import nn

batch_size = 64
image = 128
width = 32

encoder = nn.Sequential(
    nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
    nn.Conv2d(2 * width, 4 * width, 4, 2, 1), nn.ReLU(),
)  # fmt: skip
decoder = nn.Sequential(
    nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1), nn.ReLU(),
    nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.ReLU(),
    nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid(),
)  # fmt: skip
model = nn.Sequential(encoder, decoder).cuda()
optimizer = torch.optim.Adam(model.parameters())
history = []
for _ in range(3):
    x = torch.rand(batch_size, 3, image, image, device="cuda")
    loss = (model(x) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(loss.detach())
