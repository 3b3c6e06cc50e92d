# %% fused linear cross entropy | https://github.com/linkedin/Liger-Kernel
import torch
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
from torch import nn

head = nn.Linear(1024, 32000, bias=False).cuda()
x = torch.randn(2048, 1024, device="cuda", requires_grad=True)
loss = LigerFusedLinearCrossEntropyLoss()(
    head.weight, x, torch.randint(0, 32000, (2048,), device="cuda")
)
loss.backward()

# %% llama patched | https://github.com/linkedin/Liger-Kernel
import torch
from liger_kernel.transformers import apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

apply_liger_kernel_to_llama()
config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda().train()
ids = torch.randint(0, 32000, (2, 512), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
