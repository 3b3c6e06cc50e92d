# T5 of transformers (the small one at full size); Adafactor.
import torch
from transformers import T5Config, T5ForConditionalGeneration

batch_size = 16
source_length = 256
target_length = 64
layers = 6
width = 512

config = T5Config(
    num_layers=layers, d_model=width, d_ff=4 * width, num_heads=width // 64,
    decoder_start_token_id=0,
)  # fmt: skip
model = T5ForConditionalGeneration(config).to("cuda")
optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
for _ in range(2):
    source = torch.randint(1, config.vocab_size, (batch_size, source_length), device="cuda")
    target = torch.randint(1, config.vocab_size, (batch_size, target_length), device="cuda")
    loss = model(input_ids=source, labels=target).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
