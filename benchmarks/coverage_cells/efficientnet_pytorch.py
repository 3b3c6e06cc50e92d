# %% b0 | https://github.com/lukemelas/EfficientNet-PyTorch
import torch
from efficientnet_pytorch import EfficientNet

model = EfficientNet.from_name("efficientnet-b0").cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
for _ in range(3):
    out = model(torch.randn(16, 3, 224, 224, device="cuda"))
    torch.nn.functional.cross_entropy(out, torch.randint(0, 1000, (16,), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
