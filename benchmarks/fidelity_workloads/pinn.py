# A physics-informed network with second derivatives, float32; L-BFGS.
import torch
import torch.nn as nn

points = 10000
width = 64

net = nn.Sequential(
    nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
).cuda()
xt = torch.rand(points, 2, device="cuda", requires_grad=True)
optimizer = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=5, history_size=10)


def closure():
    optimizer.zero_grad()
    u = net(xt)
    (du,) = torch.autograd.grad(u.sum(), xt, create_graph=True)
    (ddu,) = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)
    residual = du[:, 1] + u.squeeze() * du[:, 0] - 0.01 * ddu[:, 0]
    loss = residual.pow(2).mean()
    loss.backward()
    return loss


for step in range(2):
    optimizer.step(closure)
