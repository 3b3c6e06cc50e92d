# Adapters of low rank on a frozen GPT-2 in bfloat16.
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

batch_size = 4
length = 512
layers = 12
width = 768
rank = 8


class Adapter(nn.Module):
    def __init__(self, inner, outputs):
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.weight.shape[0], rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.inner(x) + self.up(self.down(x.float())).to(x.dtype)


config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64)
model = GPT2LMHeadModel(config).to(torch.bfloat16).requires_grad_(False)
for block in model.transformer.h:
    block.attn.c_attn = Adapter(block.attn.c_attn, 3 * width)
model.to("cuda")
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-3)
for _ in range(2):
    ids = torch.randint(0, config.vocab_size, (batch_size, length), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
