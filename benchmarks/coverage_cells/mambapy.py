# %% mamba | https://github.com/alxndrTL/mamba.py
import torch
from mambapy.mamba import Mamba, MambaConfig

config = MambaConfig(d_model=256, n_layers=2)
model = Mamba(config).cuda()
y = model(torch.randn(2, 128, 256, device="cuda"))
y.sum().backward()
