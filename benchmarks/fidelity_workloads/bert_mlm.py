# BERT's masked language model in float32; AdamW.
import torch
from transformers import BertConfig, BertForMaskedLM

batch_size = 16
length = 256
layers = 12
width = 768

config = BertConfig(
    num_hidden_layers=layers,
    hidden_size=width,
    num_attention_heads=width // 64,
    intermediate_size=4 * width,
)
model = BertForMaskedLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    ids = torch.randint(5, config.vocab_size, (batch_size, length), device="cuda")
    chosen = torch.rand(ids.shape, device="cuda") < 0.15
    labels = torch.where(chosen, ids, -100)
    ids = ids.masked_fill(chosen, 103)
    loss = model(input_ids=ids, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
