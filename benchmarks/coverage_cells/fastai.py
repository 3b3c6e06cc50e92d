# %% tabular learner | https://docs.fast.ai/quick_start.html
import fastai.callback.schedule  # fit_one_cycle
import torch
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.losses import CrossEntropyLossFlat

data = [(torch.randn(64), torch.tensor(i % 10)) for i in range(512)]
dls = DataLoaders(DataLoader(data, bs=64, shuffle=True), DataLoader(data, bs=64), device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
learn = Learner(dls, model.cuda(), loss_func=CrossEntropyLossFlat())
learn.fit_one_cycle(2, 1e-3)
