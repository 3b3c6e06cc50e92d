# %% yogi with lookahead | https://github.com/jettify/pytorch-optimizer
import torch
import torch_optimizer as optim

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10))
model = model.cuda()
yogi = optim.Yogi(model.parameters(), lr=1e-2)
optimizer = optim.Lookahead(yogi, k=5, alpha=0.5)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(128, 512, device="cuda")).logsumexp(1).mean().backward()
    optimizer.step()
