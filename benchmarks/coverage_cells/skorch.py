# %% classifier | https://skorch.readthedocs.io/en/stable/user/quickstart.html
import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

X = np.random.rand(1000, 20).astype(np.float32)
y = np.random.randint(0, 2, 1000).astype(np.int64)


class MyModule(nn.Module):
    def __init__(self, num_units=100):
        super().__init__()
        self.dense = nn.Sequential(
            nn.Linear(20, num_units), nn.ReLU(), nn.Dropout(0.5), nn.Linear(num_units, 2)
        )

    def forward(self, X):
        return torch.softmax(self.dense(X), dim=-1)


net = NeuralNetClassifier(
    MyModule, max_epochs=3, lr=0.1, iterator_train__shuffle=True, device="cuda"
)
net.fit(X, y)
y_proba = net.predict_proba(X)
