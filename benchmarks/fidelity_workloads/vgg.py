# VGG with 16 layers at full size: convolutions with bias, max pooling, a large classifier.
import torch
from torch import nn

batch_size = 32
image = 224
width = 64
hidden = 4096

plan = [1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8, "M"]
features, inputs = [], 3
for item in plan:
    if item == "M":
        features.append(nn.MaxPool2d(2, 2))
    else:
        features += [nn.Conv2d(inputs, width * item, 3, padding=1), nn.ReLU(inplace=True)]
        inputs = width * item
model = nn.Sequential(
    *features,
    nn.AdaptiveAvgPool2d(7),
    nn.Flatten(),
    nn.Linear(inputs * 49, hidden), nn.ReLU(True), nn.Dropout(),
    nn.Linear(hidden, hidden), nn.ReLU(True), nn.Dropout(),
    nn.Linear(hidden, 1000),
).to("cuda")  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for _ in range(2):
    images = torch.randn(batch_size, 3, image, image).to("cuda")
    labels = torch.randint(0, 1000, (batch_size,)).to("cuda")
    optimizer.zero_grad()
    outputs = model(images)
    loss = criterion(outputs, labels)
    loss.backward()
    optimizer.step()
