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
