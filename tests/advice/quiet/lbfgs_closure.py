import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"
image = torch.rand(1, 3, 256, 256, device=device, requires_grad=True)
goal = torch.rand(1, 3, 256, 256, device=device)
opt = torch.optim.LBFGS([image], lr=0.5, max_iter=4, history_size=5)


# --- cell
def closure():
    opt.zero_grad()
    loss = F.mse_loss(image, goal)
    loss.backward()
    return loss


opt.step(closure)
