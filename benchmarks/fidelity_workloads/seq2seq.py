# nn.Transformer with causal and padding masks, float32; AdamW. Then inference.
import torch
import torch.nn as nn

batch_size = 16
source_length = 64
target_length = 48
width = 256
vocabulary = 8000


class Translator(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.source = nn.Embedding(vocabulary, width, padding_idx=0)
        self.target = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(1, 512, width))
        self.transformer = nn.Transformer(
            width,
            nhead=8,
            num_encoder_layers=3,
            num_decoder_layers=3,
            dim_feedforward=4 * width,
            batch_first=True,
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), source.device)
        padding = source == 0
        x = self.source(source) + self.positions[:, : source.size(1)]
        y = self.target(target) + self.positions[:, : target.size(1)]
        out = self.transformer(
            x,
            y,
            tgt_mask=mask,
            src_key_padding_mask=padding,
            tgt_key_padding_mask=(target == 0).float(),
            memory_key_padding_mask=padding,
        )
        return self.head(out)


model = Translator(vocabulary, width).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
criterion = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
source = torch.randint(0, vocabulary, (batch_size, source_length), device="cuda")
target = torch.randint(0, vocabulary, (batch_size, target_length + 1), device="cuda")
for step in range(3):
    logits = model(source, target[:, :-1])
    loss = criterion(logits.reshape(-1, vocabulary), target[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

model.eval()
with torch.no_grad():
    prediction = model(source, target[:, :-1]).argmax(-1)
