import torch
from torch import nn
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 512), nn.ReLU(), nn.Linear(512, 100)).cuda()
loader = [(torch.randn(64, 3, 32, 32), torch.randint(0, 100, (64,))) for _ in range(6)]
# --- cell
def accuracy(output, target, topk=(1,)):
    maxk = min(max(topk), output.size()[1])
    _, pred = output.topk(maxk, 1, True, True)
    pred = pred.t()
    correct = pred.eq(target.reshape(1, -1).expand_as(pred))
    return [correct[: min(k, maxk)].reshape(-1).float().sum(0) * 100.0 / output.size(0) for k in topk]

def validate(model, loader, loss_fn):
    top1, top5, n = 0.0, 0.0, 0
    model.eval()
    with torch.inference_mode():
        for input, target in loader:
            input, target = input.cuda(), target.cuda()
            output = model(input)
            loss = loss_fn(output, target)
            acc1, acc5 = accuracy(output, target, topk=(1, 5))
            torch.cuda.synchronize()
            top1 += acc1.item() * input.size(0)
            top5 += acc5.item() * input.size(0)
            n += input.size(0)
    return top1 / n, top5 / n

print(validate(model, loader, nn.CrossEntropyLoss().cuda()))
