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

# %% prefix tuning | https://huggingface.co/docs/peft/package_reference/prefix_tuning
import torch
from peft import PrefixTuningConfig, get_peft_model
from transformers import T5Config, T5ForConditionalGeneration, get_linear_schedule_with_warmup

model = T5ForConditionalGeneration(
    T5Config(d_model=512, d_kv=64, d_ff=1024, num_layers=4, num_heads=8, decoder_start_token_id=0)
)
peft_config = PrefixTuningConfig(
    task_type="SEQ_2_SEQ_LM", inference_mode=False, num_virtual_tokens=20
)
model = get_peft_model(model, peft_config)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer=optimizer, num_warmup_steps=0, num_training_steps=10
)
model = model.to("cuda")
total_loss = 0
for step in range(3):
    batch = {
        "input_ids": torch.randint(0, 32000, (8, 128)),
        "attention_mask": torch.ones(8, 128, dtype=torch.long),
        "labels": torch.randint(0, 32000, (8, 4)),
    }
    batch = {k: v.to("cuda") for k, v in batch.items()}
    loss = model(**batch).loss
    total_loss += loss.detach().float()
    loss.backward()
    optimizer.step()
    lr_scheduler.step()
    optimizer.zero_grad()
print(total_loss / 3)

# %% p tuning | https://huggingface.co/docs/peft/package_reference/p_tuning
import torch
from peft import PromptEncoderConfig, get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification

base = LlamaForSequenceClassification(
    LlamaConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        pad_token_id=0,
        num_labels=2,
    )
)
model = get_peft_model(
    base, PromptEncoderConfig(task_type="SEQ_CLS", num_virtual_tokens=20, encoder_hidden_size=128)
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    ids = torch.randint(1, 32000, (8, 64), device="cuda")
    out = model(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        labels=torch.randint(0, 2, (8,), device="cuda"),
    )
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% adalora | https://huggingface.co/docs/peft/package_reference/adalora
import torch
from peft import AdaLoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

model = BertForSequenceClassification(
    BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1024)
)
config = AdaLoraConfig(
    peft_type="ADALORA",
    init_r=12,
    target_r=4,
    tinit=2,
    tfinal=2,
    total_step=8,
    lora_alpha=32,
    target_modules=["query", "value"],
    lora_dropout=0.01,
    task_type="SEQ_CLS",
)
model = get_peft_model(model, config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    ids = torch.randint(0, 30000, (8, 64), device="cuda")
    loss = model(input_ids=ids, labels=torch.randint(0, 2, (8,), device="cuda")).loss
    loss.backward()
    optimizer.step()
    model.base_model.update_and_allocate(step)
    optimizer.zero_grad()

# %% vera and merge | https://huggingface.co/docs/peft/package_reference/vera
import torch
from peft import VeraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

base = LlamaForCausalLM(
    LlamaConfig(hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8)
).cuda()
model = get_peft_model(base, VeraConfig(r=64, target_modules=["q_proj", "v_proj"]))
ids = torch.randint(0, 32000, (4, 128), device="cuda")
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(2):
    model(input_ids=ids, labels=ids).loss.backward()
    opt.step()
    opt.zero_grad()
model = model.merge_and_unload()
with torch.inference_mode():
    model.generate(ids[:1, :16], max_new_tokens=8)

# %% loha on conv | https://huggingface.co/docs/peft/package_reference/loha
import torch
import timm
from peft import LoHaConfig, get_peft_model

model = timm.create_model("poolformer_s12", num_classes=5)
config = LoHaConfig(
    r=16,
    alpha=8,
    target_modules=r".*\.mlp\.fc\d",
    rank_dropout=0.1,
    module_dropout=0.1,
    modules_to_save=["head.fc"],
)
model = get_peft_model(model, config).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=5e-3)
for _ in range(3):
    out = model(torch.randn(16, 3, 224, 224).cuda())
    torch.nn.functional.cross_entropy(out, torch.randint(0, 5, (16,)).cuda()).backward()
    opt.step()
    opt.zero_grad()

# %% adapters switched | https://huggingface.co/docs/peft/developer_guides/lora
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

base = GPT2LMHeadModel(GPT2Config()).cuda()
model = get_peft_model(
    base,
    LoraConfig(
        r=16,
        lora_alpha=32,
        use_rslora=True,
        init_lora_weights="gaussian",
        target_modules=["c_attn", "c_proj"],
        lora_dropout=0.1,
        fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    ),
)
model.add_adapter(
    "second", LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
)
model.print_trainable_parameters()
ids = torch.randint(0, 50257, (4, 128), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
model.set_adapter("second")
model(input_ids=ids, labels=ids).loss.backward()
with model.disable_adapter(), torch.no_grad():
    reference = model(ids).logits
model.add_weighted_adapter(["default", "second"], [0.5, 0.5], "mix", combination_type="cat")
model.set_adapter("mix")
