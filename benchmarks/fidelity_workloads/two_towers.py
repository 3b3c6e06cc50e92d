# Two towers and a contrastive loss over a large batch, float32; NAdam.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 4096
features = 1024
width = 512


class Tower(nn.Module):
    def __init__(self, inputs, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(inputs, 2 * width),
            nn.GELU(),
            nn.LayerNorm(2 * width),
            nn.Dropout(0.1),
            nn.Linear(2 * width, width, bias=False),
        )

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


image, text = Tower(features, width).cuda(), Tower(features // 2, width).cuda()
scale = nn.Parameter(torch.tensor(2.66, device="cuda"))
parameters = [*image.parameters(), *text.parameters(), scale]
optimizer = torch.optim.NAdam(parameters, lr=1e-3)
for step in range(3):
    a = torch.randn(batch_size, features, device="cuda")
    b = torch.randn(batch_size, features // 2, device="cuda")
    logits = scale.exp() * image(a) @ text(b).t()
    one = F.log_softmax(logits, dim=1).diagonal().mean()
    other = F.log_softmax(logits, dim=0).diag().mean()
    loss = -(one + other) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        scale.clamp_(0, 4.6)
        accuracy = (logits.argmax(1) == torch.arange(batch_size, device="cuda")).float().mean()
