import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda")

class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden_size = 128
        self.i2h = nn.Linear(57 + 128, 128)
        self.h2o = nn.Linear(128, 18)

    def forward(self, x, hidden):
        hidden = torch.tanh(self.i2h(torch.cat((x, hidden), 1)))
        return F.log_softmax(self.h2o(hidden), dim=1), hidden

rnn = RNN().to(device)
names = [(torch.randint(0, 18, (1,)), F.one_hot(torch.randint(0, 57, (n, 1)), 57).float()) for n in (5, 8, 6)]

# --- cell
def train(category, line):
    hidden = torch.zeros(1, rnn.hidden_size, device=device)
    rnn.zero_grad()
    for i in range(line.size(0)):
        output, hidden = rnn(line[i].to(device), hidden)
    loss = F.nll_loss(output, category.to(device))
    loss.backward()
    with torch.no_grad():
        for p in rnn.parameters():
            p.add_(p.grad, alpha=-0.005)
    return output, loss.item()

current_loss, all_losses = 0, []
for category, line in names:
    output, loss = train(category, line)
    current_loss += loss
    all_losses.append(current_loss)
