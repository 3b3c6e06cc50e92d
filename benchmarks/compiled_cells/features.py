# %% reduce-overhead
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
compiled = torch.compile(lambda x: model(x).square().mean(), mode="reduce-overhead")
x = torch.randn(2048, 1024, device="cuda")
for _ in range(3):
    model.zero_grad()
    loss = compiled(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% max-autotune
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
x = torch.randn(2048, 1024, device="cuda")
for _ in range(3):
    loss = compiled(x).square().mean()
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% residual network
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        out = channels * stride
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(out), nn.BatchNorm2d(out)
        self.short = nn.Conv2d(channels, out, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return F.relu(self.bn2(self.conv2(y)) + self.short(x))


model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3),
    nn.MaxPool2d(3, 2, 1),
    *(Block(64 * 2**n, 1 + step) for n in range(3) for step in (0, 1)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(512, 100),
).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
x, y = torch.randn(32, 3, 128, 128, device="cuda"), torch.randint(100, (32,), device="cuda")
for _ in range(2):
    loss = F.cross_entropy(compiled(x), y)
    print(torch.cuda.memory_allocated())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% large logits
import torch
from torch import nn
from torch.nn import functional as F

embed = nn.Embedding(50304, 768).cuda()
norm = nn.LayerNorm(768).cuda()


@torch.compile
def loss_of(ids):
    x = norm(embed(ids))
    logits = x @ embed.weight.T
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


ids = torch.randint(50304, (4, 512), device="cuda")
for _ in range(2):
    loss = loss_of(ids)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% lora
import torch
from torch import nn


class LoRA(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.drop = nn.Dropout(0.05)

    def forward(self, x):
        return self.base(x) + 2.0 * self.b(self.a(self.drop(x)))


model = nn.Sequential(*(nn.Sequential(LoRA(2048, 16), nn.GELU()) for _ in range(4)))
model = model.to("cuda", torch.bfloat16)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
for _ in range(2):
    loss = compiled(x).float().square().mean()
    print(torch.cuda.memory_allocated())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% in place
import torch

weight = torch.randn(2048, 2048, device="cuda", requires_grad=True)
average = torch.zeros(2048, device="cuda")


@torch.compile
def run(x):
    y = (x @ weight).add_(1).sigmoid_()
    y = y * 3
    y[:, ::2].mul_(2)
    average.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return (y - average).square().sum()


x = torch.randn(4096, 2048, device="cuda")
for _ in range(2):
    loss = run(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% dropout and softmax
import torch
from torch import nn

score, value = nn.Linear(512, 512).cuda(), nn.Linear(512, 512).cuda()


@torch.compile(fullgraph=True)
def run(x):
    weights = torch.softmax(score(x) @ x.transpose(1, 2) / 22.6, dim=-1)
    weights = nn.functional.dropout(weights, 0.2)
    return (weights @ value(x)).mean()


x = torch.randn(16, 512, 512, device="cuda", requires_grad=True)
for _ in range(2):
    loss = run(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% llama block
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    vocab_size=8000,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
model.forward = torch.compile(model.forward)
ids = torch.randint(8000, (4, 256), device="cuda")
for _ in range(2):
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% gradient accumulation
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 2048), nn.SiLU(), nn.Linear(2048, 2048)).cuda()
model.compile()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    for _ in range(3):
        loss = model(torch.randn(512, 2048, device="cuda")).square().mean() / 3
        print(torch.cuda.memory_allocated())
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% unet
import torch
from torch import nn
from torch.nn import functional as F


class Double(nn.Sequential):
    def __init__(self, before, after):
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
            nn.Conv2d(after, after, 3, padding=1),
            nn.GroupNorm(8, after),
            nn.SiLU(),
        )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = Double(3, 32), Double(32, 64), Double(64, 128)
        self.up2, self.up1 = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
        self.join2, self.join1 = Double(128, 64), Double(64, 32)
        self.out = nn.Conv2d(32, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([self.up2(c), b], 1))
        return self.out(self.join1(torch.cat([self.up1(b), a], 1)))


model = torch.compile(UNet().cuda())
x, y = torch.randn(8, 3, 128, 128, device="cuda"), torch.rand(8, 1, 128, 128, device="cuda")
for _ in range(2):
    loss = F.binary_cross_entropy_with_logits(model(x), y)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% flex attention with documents
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

q, k, v = (
    torch.randn(2, 8, 1024, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    for _ in range(3)
)
documents = torch.arange(1024, device="cuda") // 128


def same_document(b, h, q_idx, kv_idx):
    return documents[q_idx] == documents[kv_idx]


def alibi(score, b, h, q_idx, kv_idx):
    return score + slopes[h] * (kv_idx - q_idx)


mask = create_block_mask(same_document, 2, None, 1024, 1024, device="cuda")
slopes = torch.randn(8, device="cuda")
flex = torch.compile(flex_attention, dynamic=False)
for _ in range(2):
    out = flex(q, k, v, score_mod=alibi, block_mask=mask)
    print(torch.cuda.memory_allocated())
    out.sum().backward()

# %% flex attention in a block
import torch
import torch.nn as nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Block(nn.Module):
    def __init__(self, width=512, heads=8, groups=2):
        super().__init__()
        self.heads, self.groups = heads, groups
        self.norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.keys = nn.Linear(width, 2 * width // heads * groups)
        self.out = nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        h = self.norm(x)
        q = self.query(h).view(batch, length, self.heads, -1).transpose(1, 2)
        k, v = self.keys(h).view(batch, length, 2 * self.groups, -1).transpose(1, 2).chunk(2, 1)
        h = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return x + self.out(h.transpose(1, 2).reshape(batch, length, width))


mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cuda")
model = nn.ModuleList([Block() for _ in range(3)]).cuda().bfloat16()
for block in model:
    block.compile()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    x = torch.randn(4, 512, 512, device="cuda", dtype=torch.bfloat16)
    for block in model:
        x = block(x, mask)
    print(torch.cuda.memory_allocated())
    x.float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

# %% made on the card by its name
import torch
from torch import nn
from torch.nn import functional as F

device = "cuda"


class Model(nn.Module):
    def __init__(self, words=4096, width=512, length=256):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layer = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x, y):
        places = torch.arange(x.shape[1], device=device)
        h = self.words(x.to(device)) + self.places(places)
        logits = self.head(h + self.layer(h))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten()) + torch.zeros((), device=device)


model = Model().to(device)
compiled = torch.compile(model)
x = torch.randint(0, 4096, (8, 256), device=device)
for _ in range(3):
    model.zero_grad()
    loss = compiled(x, x)
    print(torch.cuda.memory_allocated())
    loss.backward()
