# %% training loop | https://github.com/karpathy/nanoGPT/blob/master/train.py
import math

import torch
import torch.nn.functional as F
from torch import nn

layers, heads, width, block, vocab = 6, 6, 384, 256, 65


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
            nn.Dropout(0.2),
        )

    def forward(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.2, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(block, width)
        self.h = nn.ModuleList(Block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        for layer in self.h:
            x = layer(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.view(-1))


model = GPT().to("cuda")
scaler = torch.amp.GradScaler("cuda", enabled=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True)


def get_batch():
    data = torch.randint(0, vocab, (64, block + 1)).pin_memory().to("cuda", non_blocking=True)
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


X, Y = get_batch()
for iter_num in range(50):
    lr = 1e-3 * 0.5 * (1 + math.cos(math.pi * iter_num / 50))
    for group in optimizer.param_groups:
        group["lr"] = lr
    for micro_step in range(2):
        with torch.amp.autocast("cuda", dtype=torch.float16):
            logits, loss = model(X, Y)
            loss = loss / 2
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
