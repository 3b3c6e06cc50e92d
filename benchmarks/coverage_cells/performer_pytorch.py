# %% performer lm | https://github.com/lucidrains/performer-pytorch
import torch
from performer_pytorch import PerformerLM

model = PerformerLM(
    num_tokens=20000, max_seq_len=2048, dim=512, depth=6, heads=8, causal=False, nb_features=256
).cuda()
x = torch.randint(0, 20000, (1, 2048)).cuda()
model(x, mask=torch.ones_like(x).bool()).sum().backward()
