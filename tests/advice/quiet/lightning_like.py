import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

class ConvNet(nn.Module):
    def __init__(self, n=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, n)

    def features(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)

    def forward(self, x):
        return self.fc(self.features(x))

net = ConvNet().to(device)
images = torch.randn(64, 3, 32, 32)
labels = torch.randint(0, 10, (64,))
loader = [(images[i:i + 32], labels[i:i + 32]) for i in range(0, 64, 32)]

# --- cell
class LightningModule(nn.Module):
    def log(self, name, value):
        self.logged.setdefault(name, []).append(float(value))

class LitNet(LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone, self.logged = ConvNet(), {}
        self.validation_step_outputs = []
    def forward(self, x): return self.backbone(x)
    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.validation_step_outputs.append((logits.argmax(1) == y).float().mean())
    def on_validation_epoch_end(self):
        self.log("val_acc", torch.stack(self.validation_step_outputs).mean())
        self.validation_step_outputs.clear()
    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1)]

class Trainer:
    def __init__(self, max_epochs): self.max_epochs = max_epochs
    def fit(self, module, train, val):
        module.to(device)
        (opt,), (sched,) = module.configure_optimizers()
        for self.epoch in range(self.max_epochs):
            module.train()
            for i, b in enumerate(train):
                b = tuple(t.to(device) for t in b)
                def closure():
                    loss = module.training_step(b, i)
                    opt.zero_grad()
                    loss.backward()
                    return loss
                opt.step(closure)
            module.eval()
            with torch.no_grad():
                for i, b in enumerate(val):
                    module.validation_step(tuple(t.to(device) for t in b), i)
                module.on_validation_epoch_end()
            sched.step()

lit = LitNet()
Trainer(max_epochs=2).fit(lit, loader, loader)
lit.logged
