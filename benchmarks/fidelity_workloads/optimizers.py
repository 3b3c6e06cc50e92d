# The same small regression with one optimizer after another, each with its own state.
import torch
from torch import nn

batch_size = 512
hidden = 1024


def fit(make_optimizer):
    model = nn.Sequential(nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                          nn.Linear(hidden, 1)).cuda()  # fmt: skip
    optimizer = make_optimizer(model.parameters())
    for _ in range(2):
        x = torch.randn(batch_size, 64, device="cuda")
        loss = nn.functional.smooth_l1_loss(model(x).squeeze(1), x.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, optimizer


kept = [
    fit(lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True)),
    fit(lambda p: torch.optim.Adagrad(p, lr=0.01)),
    fit(lambda p: torch.optim.AdamW(p, amsgrad=True)),
    fit(lambda p: torch.optim.Adam(p, foreach=False)),
    fit(lambda p: torch.optim.NAdam(p)),
    fit(lambda p: torch.optim.Adafactor(p)),
    fit(lambda p: torch.optim.AdamW(p, fused=True)),
]
