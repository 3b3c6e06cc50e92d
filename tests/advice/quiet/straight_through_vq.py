import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

enc, dec = nn.Linear(784, 256).to(device), nn.Linear(256, 784).to(device)
codebook = nn.Embedding(1024, 256).to(device)
imgs = torch.rand(4096, 784)

# --- cell
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(mask)
        ctx.shape = x.shape
        return x.round()
    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g * mask, None

opt = torch.optim.Adam([*enc.parameters(), *dec.parameters(), *codebook.parameters()], lr=1e-3)
for xb in imgs.split(2048):
    xb = xb.to(device)
    z = enc(xb)
    idx = torch.cdist(z, codebook.weight).argmin(1)
    q = codebook(idx)
    vq = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
    q = z + (q - z).detach()
    r = Round.apply(q * 10, (q.abs() < 1).float()) / 10
    loss = F.mse_loss(dec(r), xb) + vq
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
