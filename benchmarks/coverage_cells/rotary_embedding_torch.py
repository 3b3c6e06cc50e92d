# %% rotary | https://github.com/lucidrains/rotary-embedding-torch
import torch
from rotary_embedding_torch import RotaryEmbedding

rotary_emb = RotaryEmbedding(dim=32).cuda()
q, k = (torch.randn(4, 8, 1024, 64, device="cuda", requires_grad=True) for _ in range(2))
q2, k2 = rotary_emb.rotate_queries_or_keys(q), rotary_emb.rotate_queries_or_keys(k)
(q2 * k2).sum().backward()
