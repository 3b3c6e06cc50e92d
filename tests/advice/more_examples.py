"""More examples of rules, in shapes that their pages need not show."""

from __future__ import annotations

from dataclasses import replace

from gpumem_magic.advice import find_rule
from gpumem_magic.advice.rule import mended
from gpumem_magic.values.advice import Example

_NEXT_WORD = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = body, head

net = Net()
hidden = net.body(ids)
loss = F.cross_entropy(net.head(hidden).flatten(0, 1), targets.flatten(), ignore_index=0)
loss.backward()
grad = head.weight.grad"""
_EPOCH = """\
def train(model, batches, optimizer):
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.mse_loss(outputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses

losses = train(model, [(x, y), (y, x)], optimizer)
last = losses[-1]"""
_FIT = """\
from torch.optim import RMSprop

def fit(model, batches, lr=1e-4):
    opt = RMSprop(
        model.parameters(),
        lr=lr,
        centered=True{},  # steadier
    )
    losses = []
    for batch in batches:
        loss = model(batch).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
    return losses

losses = fit(model, [x, x.flip(0)])"""


def _setup(rule):
    return find_rule(rule).examples[0].setup


MORE = (
    (
        "activations",
        Example(
            setup=_setup("activations"),
            before=_EPOCH,
            after="""\
def train(model, batches, optimizer):
    losses = []
    scaler = torch.amp.GradScaler("cuda")
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            outputs = model(inputs)
            loss = F.mse_loss(outputs, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses

losses = train(model, [(x, y), (y, x)], optimizer)
last = losses[-1]""",
            results=("last",),
            within=0.02,
        ),
    ),
    (
        "activations",
        Example(
            setup=_setup("activations"),
            before=_EPOCH.replace("model, [", "model, 1 * ["),
            after="import functools\nfrom torch.utils.checkpoint import checkpoint\n"
            + _EPOCH.replace("model, [", "model, 1 * [").replace(
                "    for inputs",
                """\
    for block in model:
        block.forward = functools.partial(checkpoint, type(block).forward, block, \
use_reentrant=False)
    for inputs""",
            ),
            results=("last",),
        ),
    ),
    (
        "attention-matrix",
        Example(
            setup=_setup("attention-matrix"),
            before="""\
def attend(query, key, value, bias):
    scores = torch.matmul(query, key.transpose(2, 3)) + bias
    weights = scores.softmax(-1)
    return torch.matmul(weights, value)

bias = torch.zeros(512, 512, device="cuda")
q.requires_grad_()
out = attend(q, k, v, bias)
out.sum().backward()
grad = q.grad""",
            after="""\
def attend(query, key, value, bias):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)

bias = torch.zeros(512, 512, device="cuda")
q.requires_grad_()
out = attend(q, k, v, bias)
out.sum().backward()
grad = q.grad""",
            results=("out", "grad"),
            within=1e-4,
        ),
    ),
    (
        "full-logits",
        Example(
            setup=_setup("full-logits"),
            before=_NEXT_WORD,
            after="from torch.utils.checkpoint import checkpoint\n"
            + _NEXT_WORD.replace(
                "F.cross_entropy(net.head(hidden).flatten(0, 1), targets.flatten(), "
                "ignore_index=0)",
                """\
sum(
    checkpoint(
        lambda h, t: F.cross_entropy(net.head(h), t, ignore_index=0, reduction="sum"),
        h, t, use_reentrant=False,
    )
    for h, t in zip(hidden.flatten(0, -2).chunk(8), targets.flatten().chunk(8))
) / (targets != 0).sum()""",
            ),
            results=("loss", "grad"),
        ),
    ),
    (
        "float64-by-accident",
        mended(
            ("batch = torch.from_numpy(part)", "batch = torch.from_numpy(part).float()"),
            setup=_setup("float64-by-accident"),
            before="""\
means = []
for part in np.split(samples, 2):
    batch = torch.from_numpy(part)
    batch = batch.to("cuda", non_blocking=True)
    means.append((batch * 2).mean().item())""",
            results=("means",),
            within=1e-4,
        ),
    ),
    (
        "gradients-kept",
        mended(
            ("with torch.no_grad():\n", "opt.zero_grad()\nwith torch.no_grad():\n"),
            setup=find_rule("gradients-kept").examples[1].setup
            + """\
opt = torch.optim.Adam(net.parameters())
for x, y in batches:
    opt.zero_grad()
    nn.functional.mse_loss(net(x), y).backward()
    opt.step()
""",
            before="""\
net.eval()
with torch.no_grad():
    predicted = net(held_out)""",
            results=("predicted",),
        ),
    ),
    (
        "foreach-peak",
        Example(
            setup=_setup("foreach-peak"),
            before=_FIT.format(""),
            after=_FIT.format(", foreach=False"),
            results=("losses",),
        ),
    ),
    (
        "step-in-backward",  # where the gradients are cleared last
        replace(
            find_rule("step-in-backward").examples[0],
            before="""\
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
for batch in batches:
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
final = loss.item()""",
        ),
    ),
    (
        "stale-output",
        Example(
            setup=_setup("stale-output"),
            before="""\
@torch.no_grad()
def embed(model, x):
    return torch.cat([model(part) for part in x.split(1024)])

embed(
    model,
    x,
)""",
            after="""\
@torch.no_grad()
def embed(model, x):
    return torch.cat([model(part) for part in x.split(1024)])

print(embed(
    model,
    x,
))""",
        ),
    ),
)
