# Llama of transformers in pure bfloat16 with grouped queries; AdamW.
import torch
from transformers import LlamaConfig, LlamaForCausalLM

batch_size = 4
length = 1024
layers = 12
width = 1024
vocabulary = 32000

config = LlamaConfig(
    num_hidden_layers=layers,
    hidden_size=width,
    intermediate_size=width * 11 // 4,
    num_attention_heads=width // 64,
    num_key_value_heads=width // 128,
    vocab_size=vocabulary,
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    ids = torch.randint(0, vocabulary, (batch_size, length), device="cuda")
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
