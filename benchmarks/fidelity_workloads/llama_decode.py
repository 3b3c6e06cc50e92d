# Llama in half precision writes greedily, with a cache of keys and values.
import torch
from transformers import LlamaConfig, LlamaForCausalLM

batch_size = 8
prompt_length = 256
new_tokens = 32
layers = 16
width = 2048

config = LlamaConfig(
    num_hidden_layers=layers, hidden_size=width, intermediate_size=width * 11 // 4,
    num_attention_heads=width // 64, num_key_value_heads=width // 256,
)  # fmt: skip
with torch.device("cuda"):
    model = LlamaForCausalLM(config).half().eval()
ids = torch.randint(0, config.vocab_size, (batch_size, prompt_length), device="cuda")
with torch.no_grad():
    out = model(input_ids=ids, use_cache=True)
    for _ in range(new_tokens):
        token = out.logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
