import torch, time
from torch import nn
from collections import OrderedDict
class AverageMeter:
    def __init__(self):
        self.reset()
    def reset(self):
        self.val = self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count
model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100)).cuda()
loader = [(torch.randn(16, 3, 48, 48), torch.randint(0, 100, (16,))) for _ in range(6)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
# --- cell
def train_one_epoch(epoch, model, loader, optimizer, loss_fn, amp_autocast, loss_scaler):
    losses_m, batch_time_m = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    num_updates = epoch * len(loader)
    for batch_idx, (input, target) in enumerate(loader):
        last_batch = batch_idx == len(loader) - 1
        input, target = input.cuda(), target.cuda()
        with amp_autocast():
            output = model(input)
            loss = loss_fn(output, target)
        losses_m.update(loss.item(), input.size(0))
        optimizer.zero_grad()
        loss_scaler.scale(loss).backward()
        loss_scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        loss_scaler.step(optimizer)
        loss_scaler.update()
        num_updates += 1
        batch_time_m.update(time.time() - end)
        end = time.time()
    return OrderedDict([("loss", losses_m.avg)])

from functools import partial
metrics = train_one_epoch(0, model, loader, optimizer, loss_fn, partial(torch.autocast, "cuda"), scaler)
