# %% sft | https://huggingface.co/docs/trl/main/en/sft_trainer
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from tokenizers import Tokenizer, models
from trl import SFTConfig, SFTTrainer

words = {"<unk>": 0, "<eos>": 1, **{f"w{i}": i + 2 for i in range(1000)}}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
    eos_token="<eos>",
    pad_token="<eos>",
)
config = LlamaConfig(
    vocab_size=1002,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=8,
)
model = LlamaForCausalLM(config)
data = Dataset.from_dict({"input_ids": [list(range(2, 130))] * 64})
args = SFTConfig(
    output_dir="out", max_steps=3, per_device_train_batch_size=4, report_to="none", bf16=True
)
SFTTrainer(model=model, args=args, train_dataset=data, processing_class=tokenizer).train()

# %% dpo | https://huggingface.co/docs/trl/main/en/dpo_trainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

words = {"<unk>": 0, "<eos>": 1, "<pad>": 2, **{f"w{i}": i + 3 for i in range(1000)}}
backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>")
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=1003,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
)
text = lambda n: " ".join(f"w{i}" for i in range(n))
data = Dataset.from_dict(
    {
        "prompt": [text(20 + i) for i in range(16)],
        "chosen": [text(40) for _ in range(16)],
        "rejected": [text(30 + i) for i in range(16)],
    }
)
args = DPOConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    max_steps=3,
    report_to="none",
    bf16=True,
    logging_steps=1,
)
import copy

DPOTrainer(
    model=model,
    ref_model=copy.deepcopy(model),
    args=args,
    train_dataset=data,
    processing_class=tokenizer,
).train()

# %% grpo | https://huggingface.co/docs/trl/main/en/grpo_trainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

words = {"<unk>": 0, "<eos>": 1, "<pad>": 2, **{f"w{i}": i + 3 for i in range(1000)}}
backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", padding_side="left"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=1003,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        eos_token_id=1,
        pad_token_id=2,
    )
)


def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


data = Dataset.from_dict({"prompt": [" ".join(f"w{i}" for i in range(20)) for _ in range(16)]})
args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=32,
    max_steps=2,
    report_to="none",
    logging_steps=1,
)
GRPOTrainer(
    model=model, reward_funcs=reward_len, args=args, train_dataset=data, processing_class=tokenizer
).train()

# %% sft lora packing | https://huggingface.co/docs/trl/main/en/reducing_memory_usage
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = {"<unk>": 0, "<eos>": 1, **{f"w{i}": i + 2 for i in range(1000)}}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")),
    eos_token="<eos>",
    pad_token="<eos>",
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=1002,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
)
data = Dataset.from_dict({"input_ids": [list(range(2, 60 + 2 * i)) for i in range(64)]})
args = SFTConfig(
    output_dir="out",
    max_steps=3,
    per_device_train_batch_size=4,
    report_to="none",
    max_length=256,
    packing=False,
    gradient_checkpointing=True,
    activation_offloading=True,
    eval_strategy="steps",
    eval_steps=2,
)
SFTTrainer(
    model=model,
    args=args,
    train_dataset=data,
    eval_dataset=data.select(range(8)),
    processing_class=tokenizer,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
).train()

# %% reward | https://huggingface.co/docs/trl/main/en/reward_trainer
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)
from trl import RewardConfig, RewardTrainer

words = {"<unk>": 0, "<eos>": 1, "<pad>": 2, **{f"w{i}": i + 3 for i in range(200)}}
b = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
b.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=b, eos_token="<eos>", pad_token="<pad>")
cfg = LlamaConfig(
    vocab_size=203,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_labels=1,
    pad_token_id=2,
)
text = lambda n: " ".join(f"w{i}" for i in range(n))
data = Dataset.from_dict(
    {"chosen": [text(20 + i) for i in range(16)], "rejected": [text(10 + i) for i in range(16)]}
)
RewardTrainer(
    model=LlamaForSequenceClassification(cfg),
    args=RewardConfig("out", max_steps=2, per_device_train_batch_size=4, report_to="none"),
    train_dataset=data,
    processing_class=tok,
).train()
