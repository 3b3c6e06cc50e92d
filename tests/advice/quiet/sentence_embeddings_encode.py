import torch, numpy as np
from torch import nn
import torch.nn.functional as F
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 2).cuda()
embedding = nn.Embedding(1000, 128).cuda()
sentences = [torch.randint(0, 1000, (32, 24)) for _ in range(6)]
# --- cell
def mean_pooling(token_embeddings, attention_mask):
    mask = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).float()
    return torch.sum(token_embeddings * mask, 1) / torch.clamp(mask.sum(1), min=1e-9)

encoder.eval()
all_embeddings = []
for ids in sentences:
    ids = ids.to("cuda")
    with torch.no_grad():
        out = encoder(embedding(ids))
        pooled = F.normalize(mean_pooling(out, torch.ones_like(ids)), p=2, dim=1)
        all_embeddings.extend(pooled.cpu())
all_embeddings = np.asarray([emb.numpy() for emb in all_embeddings])
scores = all_embeddings @ all_embeddings.T
