import torch
from torch import nn
embed = nn.Embedding(500, 128).cuda()
transformer = nn.Transformer(128, 4, 2, 2, 256, batch_first=True).cuda().eval()
generator = nn.Linear(128, 500).cuda()
# --- cell
@torch.no_grad()
def greedy_decode(src, max_len, start):
    memory = transformer.encoder(embed(src))
    ys = torch.full((src.shape[0], 1), start, device="cuda")
    for _ in range(max_len - 1):
        mask = nn.Transformer.generate_square_subsequent_mask(ys.size(1), device="cuda")
        out = transformer.decoder(embed(ys), memory, mask)
        next_word = generator(out[:, -1]).argmax(-1, keepdim=True)
        ys = torch.cat([ys, next_word], dim=1)
    return ys

print(greedy_decode(torch.randint(0, 500, (8, 20), device="cuda"), 16, 2).shape)
