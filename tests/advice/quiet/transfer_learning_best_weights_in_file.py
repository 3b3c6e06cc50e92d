import os, tempfile, torch
from torch import nn
backbone = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2)).cuda()
batches = [(torch.randn(16, 3, 64, 64), torch.randint(0, 2, (16,))) for _ in range(4)]
dataloaders = {"train": batches, "val": batches}
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(backbone.parameters(), lr=0.001, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)
# --- cell
def train_model(model, criterion, optimizer, scheduler, num_epochs=2):
    with tempfile.TemporaryDirectory() as folder:
        best = os.path.join(folder, "best.pt")
        torch.save(model.state_dict(), best)
        best_acc = 0.0
        for epoch in range(num_epochs):
            for phase in ["train", "val"]:
                model.train() if phase == "train" else model.eval()
                running_loss, running_corrects = 0.0, 0
                for inputs, labels in dataloaders[phase]:
                    inputs, labels = inputs.to("cuda"), labels.to("cuda")
                    optimizer.zero_grad()
                    with torch.set_grad_enabled(phase == "train"):
                        outputs = model(inputs)
                        _, preds = torch.max(outputs, 1)
                        loss = criterion(outputs, labels)
                        if phase == "train":
                            loss.backward()
                            optimizer.step()
                    running_loss += loss.item() * inputs.size(0)
                    running_corrects += torch.sum(preds == labels.data)
                if phase == "train":
                    scheduler.step()
                epoch_acc = running_corrects.double() / 64
                if phase == "val" and epoch_acc > best_acc:
                    best_acc = epoch_acc
                    torch.save(model.state_dict(), best)
        model.load_state_dict(torch.load(best, weights_only=True))
    return model

backbone = train_model(backbone, criterion, optimizer, scheduler)
