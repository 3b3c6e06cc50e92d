import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(784, 512), nn.ReLU())
        self.mu, self.logvar = nn.Linear(512, 32), nn.Linear(512, 32)
        self.dec = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


vae = VAE().to(device)
opt = torch.optim.Adam(vae.parameters(), lr=1e-3)
x = torch.rand(1024, 784, device=device)

# --- cell
for step in range(2):
    recon, mu, logvar = vae(x)
    bce = F.binary_cross_entropy_with_logits(recon, x, reduction="sum")
    kld = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum()
    loss = bce + kld
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item() / len(x))
