# GPT-2 with gradient checkpointing, autocast to bfloat16, accumulation and clipping; fused AdamW.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

batch_size = 8
length = 1024
layers = 24
width = 1024
vocabulary = 50257

config = GPT2Config(n_layer=layers, n_embd=width, n_head=width // 64, vocab_size=vocabulary)
config.use_cache = False
model = GPT2LMHeadModel(config).to("cuda")
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
for step in range(4):
    ids = torch.randint(0, vocabulary, (batch_size, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss / 2
    loss.backward()
    if step % 2 == 1:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
