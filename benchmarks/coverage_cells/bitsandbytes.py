# %% linear4bit | https://huggingface.co/docs/bitsandbytes/main/en/reference/nn/linear4bit
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(
    bnb.nn.Linear4bit(4096, 4096, compute_dtype=torch.bfloat16, quant_type="nf4"),
    bnb.nn.Linear4bit(4096, 4096, compute_dtype=torch.bfloat16, quant_type="nf4"),
)
model = model.to("cuda")
x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
model(x).sum().backward()

# %% linear8bit | https://huggingface.co/docs/bitsandbytes/main/en/reference/nn/linear8bit
import bitsandbytes as bnb
import torch
from torch import nn

fp16_model = nn.Sequential(nn.Linear(1024, 4096), nn.Linear(4096, 1024)).half()
int8_model = nn.Sequential(
    bnb.nn.Linear8bitLt(1024, 4096, has_fp16_weights=False),
    bnb.nn.Linear8bitLt(4096, 1024, has_fp16_weights=False),
)
int8_model.load_state_dict(fp16_model.state_dict())
int8_model = int8_model.to("cuda")
out = int8_model(torch.randn(32, 1024, device="cuda", dtype=torch.float16))

# %% adamw8bit | https://huggingface.co/docs/bitsandbytes/main/en/optimizers
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% paged adamw | https://huggingface.co/docs/bitsandbytes/main/en/optimizers
import bitsandbytes as bnb
import torch
from torch import nn

model = nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)).cuda()
optimizer = bnb.optim.PagedAdamW8bit(model.parameters(), lr=1e-4)
for _ in range(3):
    loss = model(torch.randn(64, 2048, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% merely imported | https://huggingface.co/docs/bitsandbytes/main/en/index
import bitsandbytes
import torch
from transformers import Trainer

x = torch.randn(1024, 1024, device="cuda")

# %% quantized from disk | https://huggingface.co/docs/transformers/quantization/bitsandbytes
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, MistralConfig, MistralForCausalLM
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

MistralForCausalLM(
    MistralConfig(
        hidden_size=1024,
        intermediate_size=3584,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
).to(torch.bfloat16).save_pretrained("base")
config = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(
    "base", quantization_config=config, device_map="auto", attn_implementation="sdpa"
)
model = prepare_model_for_kbit_training(
    model, gradient_checkpointing_kwargs={"use_reentrant": False}
)
model = get_peft_model(
    model, LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.05, task_type="CAUSAL_LM")
)
print(model.get_memory_footprint())
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
model.train()
for _ in range(2):
    ids = torch.randint(0, 32000, (2, 256), device=model.device)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained("adapter")
