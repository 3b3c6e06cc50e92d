# %% mlp
import torch
from torch import nn

model = nn.Sequential(
    nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 1024)
).cuda()
compiled = torch.compile(model)
x = torch.randn(512, 1024, device="cuda")
for _ in range(2):
    loss = compiled(x).square().mean()
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% mlp dynamic
import torch
from torch import nn

model = nn.Sequential(nn.Linear(1024, 4096), nn.SiLU(), nn.LayerNorm(4096), nn.Linear(4096, 10))
model = torch.compile(model.cuda(), dynamic=True)
for rows in (256, 1024, 768):
    loss = model(torch.randn(rows, 1024, device="cuda")).logsumexp(-1).mean()
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% cnn
import torch
from torch import nn

layers = [nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
for channels in (64, 128):
    layers += [
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
    ]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10)).cuda()
step = torch.compile(lambda x, y: nn.functional.cross_entropy(model(x), y))
x = torch.randn(64, 3, 64, 64, device="cuda")
y = torch.randint(10, (64,), device="cuda")
for _ in range(2):
    loss = step(x, y)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% encoder
import torch
from torch import nn

model = nn.Sequential(
    *(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4))
).cuda()
model = torch.compile(model)
x = torch.randn(8, 256, 512, device="cuda")
for _ in range(2):
    loss = model(x).square().mean()
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% causal attention, autocast
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 512)
        self.blocks = nn.Sequential(*(Block(512, 8) for _ in range(4)))
        self.head = nn.Linear(512, 32000, bias=False)

    def forward(self, ids, labels):
        logits = self.head(self.blocks(self.embed(ids)))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


model = Model().cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.randint(32000, (4, 512), device="cuda")
for _ in range(2):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = compiled(ids, ids)
    print(torch.cuda.memory_allocated())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% attention, float16
import torch
from torch.nn import functional as F

torch.manual_seed(0)
weights = [torch.randn(1024, 1024, device="cuda", dtype=torch.half) for _ in range(4)]
for weight in weights:
    weight.requires_grad_()


@torch.compile(fullgraph=True)
def attend(x):
    q, k, v = ((x @ w).view(8, 512, 16, 64).transpose(1, 2) for w in weights[:3])
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
    return y.transpose(1, 2).reshape(8, 512, 1024) @ weights[3]


x = torch.randn(8, 512, 1024, device="cuda", dtype=torch.half)
for _ in range(2):
    loss = attend(x).float().sum()
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% gpt2
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda()
model = torch.compile(model)
ids = torch.randint(50257, (4, 256), device="cuda")
for _ in range(2):
    loss = model(ids, labels=ids).loss
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% autocast float16 with scaler
import torch
from torch import nn

model = torch.compile(
    nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048), nn.ReLU()).cuda()
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
x = torch.randn(1024, 2048, device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).square().mean()
    print(torch.cuda.memory_allocated())
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

# %% graph breaks
import torch
from torch import nn

first, second = (
    nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda() for _ in range(2)
)


@torch.compile
def run(x):
    y = first(x).relu()
    torch._dynamo.graph_break()
    y = second(y * 2 + torch.sin(y))
    torch._dynamo.graph_break()
    return y.square().mean()


x = torch.randn(512, 1024, device="cuda")
for _ in range(2):
    loss = run(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% several functions
import torch
from torch import nn
from torch.nn import functional as F

encoder = torch.compile(
    nn.Sequential(nn.Linear(1024, 2048), nn.Tanh(), nn.Linear(2048, 256)).cuda()
)
decoder = torch.compile(
    nn.Sequential(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 1024)).cuda()
)


@torch.compile
def distance(x, y):
    return F.smooth_l1_loss(x, y) + 0.1 * (x - y).abs().amax(-1).mean()


x = torch.randn(2048, 1024, device="cuda")
for _ in range(2):
    loss = distance(decoder(encoder(x)), x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% compiled optimizer step
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
step = torch.compile(lambda: optimizer.step())
x = torch.randn(256, 1024, device="cuda")
for _ in range(3):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    print(torch.cuda.memory_allocated())
    loss.backward()
    step()

# %% half the memory budget
import torch
import torch._functorch.config
from torch import nn

torch._functorch.config.activation_memory_budget = 0.5
model = nn.Sequential(
    *(nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True) for _ in range(2))
).cuda()
compiled = torch.compile(lambda x: model(x).square().mean())
x = torch.randn(8, 256, 512, device="cuda", requires_grad=True)
for _ in range(2):
    loss = compiled(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% checkpointing inside
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = nn.ModuleList(
    nn.Sequential(nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    for _ in range(4)
).cuda()


@torch.compile
def run(x):
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=False)
    return x.square().mean()


x = torch.randn(2048, 1024, device="cuda", requires_grad=True)
for _ in range(2):
    loss = run(x)
    print(torch.cuda.memory_allocated())
    loss.backward()

# %% inference
import torch
from torch import nn

model = nn.Sequential(
    *(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(3))
)
model = torch.compile(model.half().cuda().eval())
x = torch.randn(4096, 2048, device="cuda", dtype=torch.half)
with torch.no_grad():
    for _ in range(2):
        y = model(x)
        print(torch.cuda.memory_allocated())

# %% twelve layers
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, 2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(x.shape)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


class GPT(nn.Module):
    def __init__(self, words=50304, length=1024, width=768):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block() for _ in range(12)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.words.weight = self.head.weight

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


model = torch.compile(GPT().cuda())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    tokens = torch.randint(0, 50304, (4, 1025), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens[:, :-1], tokens[:, 1:])
    print(torch.cuda.memory_allocated())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
