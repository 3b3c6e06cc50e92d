# %% accuracy | https://lightning.ai/docs/torchmetrics/stable/pages/quickstart.html
import torch
import torchmetrics

metric = torchmetrics.classification.Accuracy(task="multiclass", num_classes=5).to("cuda")
for _ in range(10):
    preds = torch.randn(1000, 5, device="cuda").softmax(dim=-1)
    acc = metric(preds, torch.randint(5, (1000,), device="cuda"))
    print(f"Accuracy: {acc}")
acc = metric.compute()
