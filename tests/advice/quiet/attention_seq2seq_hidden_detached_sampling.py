import torch
from torch import nn
rnn = nn.LSTM(64, 256, 2, batch_first=True).cuda()
embed, out = nn.Embedding(100, 64).cuda(), nn.Linear(256, 100).cuda()
# --- cell
def sample(prime, length=50, temperature=0.8):
    rnn.eval()
    with torch.no_grad():
        hidden = None
        ids = torch.tensor([prime], device="cuda")
        x, hidden = rnn(embed(ids), hidden)
        text = list(prime)
        for _ in range(length):
            probs = (out(x[:, -1]) / temperature).softmax(-1)
            nxt = torch.multinomial(probs, 1)
            text.append(nxt.item())
            x, hidden = rnn(embed(nxt), hidden)
    return text

print(len(sample([1, 2, 3])))
