import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).cuda()
criterion = nn.CrossEntropyLoss().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
trainloader = [(torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))) for _ in range(8)]
# --- cell
def train(data):
    inputs, labels = data[0].to(device="cuda"), data[1].to(device="cuda")
    outputs = model(inputs)
    loss = criterion(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for step, batch_data in enumerate(trainloader):
    if step >= 1 + 1 + 3:
        break
    train(batch_data)
