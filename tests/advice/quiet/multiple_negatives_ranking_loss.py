import torch
from torch import nn
import torch.nn.functional as F
encoder = nn.Sequential(nn.EmbeddingBag(5000, 256), nn.Linear(256, 256)).cuda()
optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
pairs = [(torch.randint(0, 5000, (64, 16)), torch.randint(0, 5000, (64, 16))) for _ in range(6)]
# --- cell
encoder.train()
for anchors, positives in pairs:
    a = F.normalize(encoder(anchors.cuda()), dim=-1)
    b = F.normalize(encoder(positives.cuda()), dim=-1)
    scores = a @ b.T * 20.0
    labels = torch.arange(len(scores), device=scores.device)
    loss = F.cross_entropy(scores, labels)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1)
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
