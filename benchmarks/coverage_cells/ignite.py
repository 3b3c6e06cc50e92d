# %% trainer | https://docs.pytorch.org/ignite/quickstart.html
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(640, 1, 28, 28), torch.randint(0, 10, (640,)))
train_loader = DataLoader(data, batch_size=128, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)
).to("cuda")
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
criterion = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, criterion, "cuda")
metrics = {"accuracy": Accuracy(), "loss": Loss(criterion)}
evaluator = create_supervised_evaluator(model, metrics=metrics, device="cuda")


@trainer.on(Events.EPOCH_COMPLETED)
def log_results(trainer):
    evaluator.run(train_loader)
    print(evaluator.state.metrics["accuracy"])


trainer.run(train_loader, max_epochs=2)
