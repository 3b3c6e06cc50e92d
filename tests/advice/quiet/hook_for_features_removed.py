import collections, copy, math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
device = "cuda"

net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(device)
loader = DataLoader(TensorDataset(torch.randn(128, 3, 64, 64)), batch_size=32)

# --- cell
activation = {}
def get_activation(name):
    def hook(model, inputs, output):
        activation[name] = output.detach()
    return hook
handle = net[3].register_forward_hook(get_activation("conv2"))
net.eval()
means = []
with torch.no_grad():
    for (x,) in loader:
        net(x.to(device))
        means.append(activation["conv2"].mean(dim=(2, 3)).cpu())
handle.remove()
means = torch.cat(means)
