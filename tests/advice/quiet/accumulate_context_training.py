import torch
from torch import nn
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
dataloader = [(torch.randn(32, 128), torch.randint(0, 10, (32,))) for _ in range(8)]
gradient_accumulation_steps = 4
# --- cell
model.train()
total_loss = 0.0
for step, (x, y) in enumerate(dataloader):
    outputs = model(x.cuda())
    loss = nn.functional.cross_entropy(outputs, y.cuda())
    total_loss += loss.detach().float()
    loss = loss / gradient_accumulation_steps
    loss.backward()
    if (step + 1) % gradient_accumulation_steps == 0 or step == len(dataloader) - 1:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
print(total_loss.item() / len(dataloader))
