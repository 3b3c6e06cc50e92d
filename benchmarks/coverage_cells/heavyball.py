# %% adamw | https://github.com/HomebrewML/HeavyBall
import heavyball
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
model = model.cuda()
optimizer = heavyball.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    model(torch.randn(64, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
