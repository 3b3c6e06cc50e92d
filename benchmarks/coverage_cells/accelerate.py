# %% quicktour | https://huggingface.co/docs/accelerate/main/en/quicktour
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(mixed_precision="fp16")
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(512, 512), torch.randint(0, 10, (512,)))
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

# %% dispatch model | https://huggingface.co/docs/accelerate/main/en/concept_guides/big_model_inference
import torch
from accelerate import cpu_offload_with_hook, dispatch_model, infer_auto_device_map
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
)
model = LlamaForCausalLM(config).half()
device_map = infer_auto_device_map(
    model, max_memory={0: "150MiB", "cpu": "4GiB"}, no_split_module_classes=["LlamaDecoderLayer"]
)
model = dispatch_model(model, device_map=device_map)
with torch.no_grad():
    out = model(torch.randint(0, 32000, (1, 128), device="cuda"))

# %% accumulate | https://huggingface.co/docs/accelerate/main/en/usage_guides/gradient_accumulation
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16")
model = nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 8, batch_first=True), 4)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.randn(256, 32, 256), batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

# %% device map with max memory | https://huggingface.co/docs/accelerate/usage_guides/big_modeling
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM

GPTNeoXForCausalLM(
    GPTNeoXConfig(
        hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, intermediate_size=4096
    )
).half().save_pretrained("neox")
model = AutoModelForCausalLM.from_pretrained(
    "neox",
    device_map="auto",
    max_memory={0: "200MiB", "cpu": "4GiB"},
    offload_folder="off",
    dtype=torch.float16,
)
print(set(model.hf_device_map.values()))
with torch.no_grad():
    out = model.generate(torch.randint(0, 50000, (1, 32), device="cuda"), max_new_tokens=8)
