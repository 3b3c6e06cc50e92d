# %% lora | https://huggingface.co/docs/peft/main/en/quicktour
import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
)
model = LlamaForCausalLM(config).to(torch.bfloat16)
peft_config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=32, lora_dropout=0.1)
model = get_peft_model(model, peft_config).cuda()
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(0, 32000, (4, 256), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% dora | https://huggingface.co/docs/peft/main/en/developer_guides/lora
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, num_attention_heads=16
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
model = get_peft_model(model, LoraConfig(use_dora=True, r=16, target_modules="all-linear"))
ids = torch.randint(0, 32000, (2, 256), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()

# %% ia3 | https://huggingface.co/docs/peft/main/en/conceptual_guides/ia3
import torch
from peft import IA3Config, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
model = get_peft_model(LlamaForCausalLM(config), IA3Config(task_type="CAUSAL_LM")).cuda()
ids = torch.randint(0, 32000, (2, 256), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()

# %% prompt tuning | https://huggingface.co/docs/peft/main/en/package_reference/prompt_tuning
import torch
from peft import PromptTuningConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
model = get_peft_model(
    LlamaForCausalLM(config), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
).cuda()
ids = torch.randint(0, 32000, (2, 256), device="cuda")
model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss.backward()

# %% qlora 7b | https://huggingface.co/docs/peft/main/en/developer_guides/quantization
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def quantize(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name != "lm_head":
            layer = bnb.nn.Linear4bit(
                child.in_features,
                child.out_features,
                bias=False,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
            )
            layer.weight = bnb.nn.Params4bit(
                child.weight.data, requires_grad=False, quant_type="nf4"
            )
            setattr(module, name, layer)
        else:
            quantize(child)


torch.set_default_dtype(torch.bfloat16)
model = LlamaForCausalLM(LlamaConfig())
quantize(model)
torch.set_default_dtype(torch.float32)
model = model.to("cuda")
model.is_loaded_in_4bit = True
model = prepare_model_for_kbit_training(model)
model = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
)
optimizer = bnb.optim.PagedAdamW8bit((p for p in model.parameters() if p.requires_grad), lr=2e-4)
for _ in range(2):
    ids = torch.randint(0, 32000, (1, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% lora on 8 bit | https://huggingface.co/docs/peft/main/en/developer_guides/quantization
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def quantize(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and name != "lm_head":
            layer = bnb.nn.Linear8bitLt(
                child.in_features,
                child.out_features,
                bias=False,
                has_fp16_weights=False,
                threshold=6.0,
            )
            layer.weight = bnb.nn.Int8Params(
                child.weight.data, requires_grad=False, has_fp16_weights=False
            )
            setattr(module, name, layer)
        else:
            quantize(child)


config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16
)
model = LlamaForCausalLM(config).half()
quantize(model)
model = model.cuda()
model.is_loaded_in_8bit = True
model = prepare_model_for_kbit_training(model)
model = get_peft_model(
    model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
ids = torch.randint(0, 32000, (2, 256), device="cuda")
with torch.autocast("cuda"):
    loss = model(input_ids=ids, labels=ids).loss
loss.backward()
