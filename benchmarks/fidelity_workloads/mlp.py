# A multilayer perceptron with dropout, plain SGD.
import torch
from torch import nn

batch_size = 1024
hidden = 4096
steps = 3

model = nn.Sequential(
    nn.Linear(784, hidden),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(hidden, hidden),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(hidden, 10),
).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
for step in range(steps):
    images = torch.randn(batch_size, 784, device="cuda")
    labels = torch.randint(0, 10, (batch_size,), device="cuda")
    optimizer.zero_grad()
    loss = criterion(model(images), labels)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
