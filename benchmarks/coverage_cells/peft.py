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

# %% qlora 7b | https://huggingface.co/docs/peft/main/en/developer_guides/quantization | L4
import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations import replace_with_bnb_linear

quantization = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
with torch.device("meta"):
    model = LlamaForCausalLM(LlamaConfig()).to(torch.bfloat16)
model = replace_with_bnb_linear(
    model, modules_to_not_convert=["lm_head"], quantization_config=quantization
)
model = model.to_empty(device="cpu")
model.is_loaded_in_4bit = True
model.quantization_method = "bitsandbytes"
model = model.to("cuda")
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
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM
from transformers.integrations import replace_with_bnb_linear

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16
)
model = LlamaForCausalLM(config).half()
quantization = BitsAndBytesConfig(load_in_8bit=True)
model = replace_with_bnb_linear(
    model, modules_to_not_convert=["lm_head"], quantization_config=quantization
)
model.is_loaded_in_8bit = True
model = prepare_model_for_kbit_training(model.cuda())
model = get_peft_model(
    model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
ids = torch.randint(0, 32000, (2, 256), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
