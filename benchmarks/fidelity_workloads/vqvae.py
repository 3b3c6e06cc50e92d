# A VQ-VAE: a codebook by distance, straight-through gradients, float32; Adam.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 32
size = 64
codes = 512
width = 64

encoder = nn.Sequential(
    nn.Conv2d(3, width, 4, 2, 1),
    nn.ReLU(),
    nn.Conv2d(width, width, 4, 2, 1),
    nn.ReLU(),
    nn.Conv2d(width, width, 1),
).cuda()
decoder = nn.Sequential(
    nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
).cuda()
codebook = nn.Embedding(codes, width).cuda()
optimizer = torch.optim.Adam(
    [*encoder.parameters(), *decoder.parameters(), *codebook.parameters()], lr=1e-3
)
for step in range(3):
    x = torch.rand(batch_size, 3, size, size, device="cuda")
    z = encoder(x).permute(0, 2, 3, 1)
    flat = z.reshape(-1, width)
    index = torch.cdist(flat, codebook.weight).argmin(1)
    q = codebook(index).view(z.shape)
    loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
    q = z + (q - z).detach()
    loss = loss + F.l1_loss(decoder(q.permute(0, 3, 1, 2)), x)
    usage = F.one_hot(index, codes).float().mean(0)
    perplexity = torch.exp(-(usage * torch.log(usage + 1e-10)).sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
