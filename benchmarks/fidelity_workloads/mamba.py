# Mamba: a state-space language model, float32; AdamW.
import torch
from transformers import MambaConfig, MambaForCausalLM

batch_size = 2
length = 64
width = 128
layers = 2

config = MambaConfig(hidden_size=width, num_hidden_layers=layers, vocab_size=4000, state_size=8)
model = MambaForCausalLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    tokens = torch.randint(0, 4000, (batch_size, length), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
