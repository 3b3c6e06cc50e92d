# %% triplet margin | https://kevinmusgrave.github.io/pytorch-metric-learning/
import torch
from pytorch_metric_learning import losses

net = torch.nn.Sequential(
    torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 128)
).cuda()
loss_func = losses.TripletMarginLoss(margin=0.1)
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    optimizer.zero_grad()
    embeddings = net(torch.randn(64, 784, device="cuda"))
    loss = loss_func(embeddings, torch.randint(0, 10, (64,)).cuda())
    loss.backward()
    optimizer.step()

# %% arcface | https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
import torch
from pytorch_metric_learning import losses

net = torch.nn.Linear(512, 256).cuda()
loss_func = losses.ArcFaceLoss(1000, 256).cuda()
optimizer = torch.optim.SGD([*net.parameters(), *loss_func.parameters()], lr=0.01)
loss = loss_func(net(torch.randn(128, 512, device="cuda")), torch.randint(0, 1000, (128,)).cuda())
loss.backward()
optimizer.step()
