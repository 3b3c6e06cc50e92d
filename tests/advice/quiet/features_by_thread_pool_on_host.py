from concurrent.futures import ThreadPoolExecutor, as_completed
import torch
from torch import nn
torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda().eval()
chunks = torch.randn(4096, 128).split(256)
# --- cell
@torch.no_grad()
def encode(chunk):
    return encoder(chunk.cuda()).cpu()

with ThreadPoolExecutor(max_workers=2) as pool:
    futures = {pool.submit(encode, chunk): i for i, chunk in enumerate(chunks)}
    features = [None] * len(chunks)
    for future in as_completed(futures):
        features[futures[future]] = future.result()
features = torch.cat(features)
print(features.shape)
