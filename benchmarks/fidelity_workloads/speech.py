# Speech recognition: convolutions, bidirectional GRU, CTC loss, float32; Adagrad.
import torch
import torch.nn as nn

batch_size = 8
frames = 400
width = 128
letters = 29


class Recognizer(nn.Module):
    def __init__(self, width, letters):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.GroupNorm(8, 32),
            nn.GELU(),
            nn.Conv2d(32, 32, 3, stride=(2, 1), padding=1),
            nn.GroupNorm(8, 32),
            nn.GELU(),
        )
        self.rnn = nn.GRU(32 * 20, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(2 * width, letters)

    def forward(self, x):
        x = self.conv(x)
        x = x.permute(0, 3, 1, 2).flatten(2)
        return self.out(self.rnn(x)[0]).log_softmax(-1)


model = Recognizer(width, letters).cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
ctc = nn.CTCLoss(blank=0, zero_infinity=True)
for step in range(3):
    sound = torch.randn(batch_size, 1, 80, frames, device="cuda")
    text = torch.randint(1, letters, (batch_size, 40), device="cuda")
    scores = model(sound).transpose(0, 1)
    lengths = torch.full((batch_size,), scores.size(0), dtype=torch.long)
    loss = ctc(scores, text, lengths, torch.full((batch_size,), 40))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
