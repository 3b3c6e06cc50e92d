# OctoCoder (StarCoder, 15.5 billion parameters) in bf16: a prompt of 21 tokens, 60 new ones.
import torch
from transformers import AutoModelForCausalLM, GPTBigCodeConfig

prompt = 21
new = 60

config = GPTBigCodeConfig(
    vocab_size=49152,
    n_positions=8192,
    n_embd=6144,
    n_layer=40,
    n_head=48,
    n_inner=24576,
    multi_query=True,
    attention_softmax_in_fp32=True,
    scale_attention_softmax_in_fp32=True,
    attn_implementation="eager",
)
model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).to("cuda").eval()
ids = torch.ones(1, prompt, dtype=torch.int64, device="cuda")
out = model.generate(ids, max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None)
