"""Language models whose logits set the peak."""

from __future__ import annotations

from gpumem_magic.values.advice import Example

_PARTS = """\
import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
WORDS = 8000
body = nn.Sequential(nn.Embedding(WORDS, 32), nn.Linear(32, 32), nn.GELU()).cuda()
head = nn.Linear(32, WORDS, bias=False).cuda()
ids = torch.randint(0, WORDS, (4, 128), device="cuda")
targets = ids.roll(-1, 1)
"""

_MODEL = """\
class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body = body
        self.lm_head = head

    def forward(self, ids, targets):
        x = self.body(ids)
"""
_STEP = """\
        return loss

model = Model(body, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    loss = model(ids, targets)  # of the batch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
final, weight = loss.detach(), head.weight"""

_GENERATE = """\
class Model(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, ids):
        x = self.body(ids)
        return self.head(x)  # logits

model = Model(body, head).eval()
known = ids
with torch.no_grad():
    for _ in range(3):
        logits = model(known)
        known = torch.cat([known, logits[:, -1, :].argmax(-1, keepdim=True)], 1)"""


EXAMPLES = (
    Example(
        setup=_PARTS,
        before=_MODEL
        + """\
        logits = self.lm_head(x)
        # next word
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
"""
        + _STEP,
        after="from torch.utils.checkpoint import checkpoint\n"
        + _MODEL
        + """\
        # next word
        loss = sum(
            checkpoint(
                lambda h, t: F.cross_entropy(self.lm_head(h), t, reduction="sum"),
                h, t, use_reentrant=False,
            )
            for h, t in zip(x.flatten(0, -2).chunk(8), targets.flatten().chunk(8))
        ) / (targets != -100).sum()
"""
        + _STEP,
        results=("final", "weight"),
    ),
    Example(setup=_PARTS, before=_GENERATE,
            after=_GENERATE.replace("self.head(x)", "self.head(x[:, -1:])"),
            results=("known",)),
)  # fmt: skip
