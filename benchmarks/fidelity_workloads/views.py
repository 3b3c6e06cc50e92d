# Matrix products of views: strided, sliced, repeated; gradients of sums.
import torch
import torch.nn as nn

n = 1000
width = 300

model = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)).cuda()
x = torch.randn(n, width, device="cuda", requires_grad=True)
model(x).sum().backward()
y = x.detach()[:, ::2] @ x.detach()[:, ::2].t()
z = x.detach()[:, 10:200] @ x.detach()[:, 100:290].t()
w = torch.mm(x.detach()[::3, ::3].t(), x.detach()[::3])
b = torch.randn(8, n, width, device="cuda", requires_grad=True)
c = torch.bmm(b, b.transpose(1, 2))
c.sum().backward()
d = torch.bmm(b.detach()[:, :, ::2], b.detach()[:, :, ::2].transpose(1, 2))
e = torch.matmul(b.detach()[:1].expand(8, n, width), torch.randn(8, width, 7, device="cuda"))
f = torch.mv(x.detach()[:, ::2], torch.ones(1, device="cuda").expand(width // 2))
g = torch.mv(x.detach(), torch.ones(1, device="cuda").expand(width))
h = torch.addmm(
    torch.zeros(n, n, device="cuda"), x.detach()[:, ::2], x.detach()[:, ::2].t(), beta=0.5
)
k = torch.baddbmm(
    torch.zeros(8, n, n, device="cuda"),
    b.detach()[:, :, 1::2],
    b.detach()[:, :, ::2].transpose(1, 2),
)
v = torch.randn(n, device="cuda", requires_grad=True)
(x.detach() @ x.detach().t() @ v).sum().backward()
lin = nn.Linear(width // 2, 50).cuda()
lin(x.detach()[:, ::2]).mean().backward()
lin(b.detach()[..., ::2]).mean().backward()
p = torch.einsum("bnd,bmd->bnm", b.detach()[..., :100], b.detach()[..., 100:200])
q = torch.baddbmm(
    torch.zeros(n, 1, device="cuda"),
    b.detach().permute(2, 1, 0)[:8, :, ::2],
    torch.randn(8, 4, 5, device="cuda"),
)
s = torch.dot(x.detach()[:, 0], x.detach()[:, 1])
t = torch.outer(x.detach()[:, 0], x.detach()[0])
u = torch.addmv(x.detach()[:, 3], x.detach().t()[:50].t()[:, ::7], torch.ones(8, device="cuda"))
