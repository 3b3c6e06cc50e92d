# GPT-2 of transformers (the small one at full size) in float32; AdamW.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

batch_size = 8
length = 512
layers = 12
width = 768
vocabulary = 50257
steps = 2

config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=vocabulary)
model = GPT2LMHeadModel(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model.train()
for step in range(steps):
    ids = torch.randint(0, vocabulary, (batch_size, length), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
