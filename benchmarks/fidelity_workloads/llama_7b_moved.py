# Llama with 7 billion parameters, made on the host and moved; AdamW.
import torch
from transformers import LlamaConfig, LlamaForCausalLM

batch_size = 1
length = 2048
layers = 32

model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
ids = torch.randint(0, 32000, (batch_size, length), device="cuda")
loss = model(input_ids=ids, labels=ids).loss
loss.backward()
optimizer.step()
