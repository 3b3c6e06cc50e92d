# A variational autoencoder: reparametrization, a KL term, sampling without gradients; AdamW.
import torch
import torch.nn.functional as F
from torch import nn

batch_size = 1024
hidden = 2048
latent = 128


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(3072, hidden), nn.ELU(), nn.Linear(hidden, hidden))
        self.mean, self.log_var = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.decode = nn.Sequential(
            nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, 3072), nn.Sigmoid()
        )

    def forward(self, x):
        h = F.elu(self.encode(x.flatten(1)))
        mean, log_var = self.mean(h), self.log_var(h)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decode(z), mean, log_var


vae = VAE().to("cuda")
optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-4)
for _ in range(3):
    x = torch.rand(batch_size, 3, 32, 32, device="cuda")
    y, mean, log_var = vae(x)
    reconstruction = F.binary_cross_entropy(y, x.flatten(1), reduction="sum") / batch_size
    kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(1).mean()
    loss = reconstruction + kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    samples = vae.decode(torch.randn(batch_size, latent, device="cuda")).view(-1, 3, 32, 32)
