# Texts as bags of words, triplet and cosine losses, float32; Adam with amsgrad.
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size = 512
words = 100000
width = 128


class Encoder(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, tokens, offsets):
        return self.net(self.bag(tokens, offsets))


model = Encoder(words, width).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True)
triplet = nn.TripletMarginLoss(margin=0.5)
cosine = nn.CosineEmbeddingLoss()
offsets = torch.arange(0, 20 * batch_size, 20, device="cuda")
for step in range(3):
    a, p, n = (
        model(torch.randint(0, words, (20 * batch_size,), device="cuda"), offsets) for _ in range(3)
    )
    sign = torch.ones(batch_size, device="cuda")
    loss = (
        triplet(a, p, n)
        + cosine(a, p, sign)
        + F.margin_ranking_loss(F.cosine_similarity(a, p), F.cosine_similarity(a, n), sign)
        + F.pairwise_distance(a, n).clamp(max=2).neg().mean()
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
