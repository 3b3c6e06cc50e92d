# %% vae svi | https://pyro.ai/examples/vae.html
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from torch import nn


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 400), nn.Softplus())
        self.loc, self.scale = nn.Linear(400, 50), nn.Linear(400, 50)
        self.decode = nn.Sequential(
            nn.Linear(50, 400), nn.Softplus(), nn.Linear(400, 784), nn.Sigmoid()
        )
        self.cuda()

    def model(self, x):
        pyro.module("decoder", self.decode)
        with pyro.plate("data", x.shape[0]):
            zero, one = x.new_zeros(x.shape[0], 50), x.new_ones(x.shape[0], 50)
            z = pyro.sample("latent", dist.Normal(zero, one).to_event(1))
            image = self.decode(z)
            pyro.sample("obs", dist.Bernoulli(image, validate_args=False).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encode)
        with pyro.plate("data", x.shape[0]):
            hidden = self.encode(x)
            loc, scale = self.loc(hidden), self.scale(hidden).exp()
            pyro.sample("latent", dist.Normal(loc, scale).to_event(1))


vae = VAE()
svi = SVI(vae.model, vae.guide, Adam({"lr": 1e-3}), loss=Trace_ELBO())
for _ in range(3):
    loss = svi.step(torch.rand(256, 784).cuda())
