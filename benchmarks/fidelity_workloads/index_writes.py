# Writes and reads by index: reduce, copy, scatter, gather, sort, logsumexp.
import torch

rows = 50000
width = 64
x = torch.randn(rows, width, device="cuda", requires_grad=True)
i = torch.randint(0, rows, (rows,), device="cuda")
a = torch.zeros(rows, width, device="cuda").index_reduce(0, i, x.detach(), "amax")
b = torch.zeros(rows, width, device="cuda").index_copy(0, i, x.detach())
c = torch.zeros(rows, width, device="cuda").scatter_reduce(
    0, i[:, None].expand(-1, width), x, "mean"
)
d = torch.take_along_dim(x, x.argsort(1), 1)
e = x.gather(1, x.topk(5, dim=1).indices)
f = torch.bucketize(x.detach(), torch.linspace(-3, 3, 64, device="cuda"))
g = torch.where(x > 0, x, torch.zeros_like(x)).cumsum(0)
h = x.masked_fill(x < 0, 0.0).logsumexp(1)
k = x[i] + x[:, torch.randperm(width, device="cuda")].roll(1, 0).flip(1)
(c.sum() + d.sum() + e.sum() + g.mean() + h.mean() + k.std()).backward()
averages = torch.zeros(rows, width, device="cuda").index_reduce_(0, i, x.detach(), "mean")
m = torch.zeros(rows, width, device="cuda").index_reduce_(
    0, i, x.detach(), "prod", include_self=False
)
n = torch.zeros(rows, width, device="cuda").scatter_reduce_(
    0, i[:, None].expand(-1, width), x.detach(), "amin", include_self=False
)
o = x.detach().t().logsumexp(0) + x.detach().logsumexp((0, 1)) + x.detach().half().logsumexp(1)
