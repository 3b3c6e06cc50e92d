import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class TextModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.EmbeddingBag(5000, 64)
        self.fc = nn.Linear(64, 4)

    def forward(self, text, offsets):
        return self.fc(self.embedding(text, offsets))

model = TextModel().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.1)
batches = [(torch.randint(0, 4, (32,)), torch.randint(0, 5000, (640,)), torch.arange(0, 640, 20)) for _ in range(4)]

# --- cell
def train(batches):
    model.train()
    total_acc, total_count = 0, 0
    for label, text, offsets in batches:
        label, text, offsets = label.to(device), text.to(device), offsets.to(device)
        optimizer.zero_grad()
        predicted = model(text, offsets)
        loss = criterion(predicted, label)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        total_acc += (predicted.argmax(1) == label).sum().item()
        total_count += label.size(0)
    return total_acc / total_count

for epoch in range(2):
    train(batches)
    scheduler.step()
