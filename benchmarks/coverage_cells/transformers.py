# %% gpt2 greedy | https://huggingface.co/docs/transformers/main/en/llm_tutorial
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(eos_token_id=50256, pad_token_id=50256)).to("cuda").eval()
ids = torch.randint(0, 50000, (4, 64), device="cuda")
output = model.generate(ids, max_new_tokens=100, do_sample=False)

# %% gpt2 sampled | https://huggingface.co/docs/transformers/main/en/generation_strategies
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).to("cuda").eval()
ids = torch.randint(0, 50000, (4, 64), device="cuda")
output = model.generate(
    ids,
    max_new_tokens=64,
    do_sample=True,
    top_k=50,
    top_p=0.95,
    temperature=0.7,
    pad_token_id=50256,
)

# %% llama 1b greedy | https://huggingface.co/docs/transformers/main/en/llm_tutorial
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

config = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    eos_token_id=128001,
    pad_token_id=128001,
)
with torch.device("cuda"):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
inputs = {
    "input_ids": torch.randint(0, 128000, (1, 128)).cuda(),
    "attention_mask": torch.ones(1, 128, dtype=torch.long).cuda(),
}
out = model.generate(**inputs, max_new_tokens=256)

# %% llama beam | https://huggingface.co/docs/transformers/main/en/generation_strategies
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
model = LlamaForCausalLM(config).half().cuda().eval()
inputs = {
    "input_ids": torch.randint(0, 32000, (2, 32)).cuda(),
    "attention_mask": torch.ones(2, 32, dtype=torch.long).cuda(),
}
out = model.generate(**inputs, max_new_tokens=48, num_beams=4, pad_token_id=0)

# %% llama static cache | https://huggingface.co/docs/transformers/main/en/kv_cache
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
model = LlamaForCausalLM(config).half().cuda().eval()
inputs = {
    "input_ids": torch.randint(0, 32000, (2, 32)).cuda(),
    "attention_mask": torch.ones(2, 32, dtype=torch.long).cuda(),
}
out = model.generate(
    **inputs, max_new_tokens=48, cache_implementation="static", pad_token_id=0, disable_compile=True
)

# %% llama 7b sampled | https://huggingface.co/docs/transformers/main/en/llm_tutorial
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_default_dtype(torch.float16)
model = LlamaForCausalLM(LlamaConfig()).to("cuda").eval()
torch.set_default_dtype(torch.float32)
ids = torch.randint(0, 32000, (1, 512), device="cuda")
out = model.generate(ids, max_new_tokens=256, do_sample=True, top_p=0.9, repetition_penalty=1.1)

# %% assisted | https://huggingface.co/docs/transformers/main/en/generation_strategies
import torch
from transformers import LlamaConfig, LlamaForCausalLM

big = LlamaConfig(
    hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=16
)
small = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4
)
model = LlamaForCausalLM(big).half().cuda().eval()
assistant = LlamaForCausalLM(small).half().cuda().eval()
ids = torch.randint(0, 32000, (1, 32), device="cuda")
out = model.generate(ids, assistant_model=assistant, max_new_tokens=64, do_sample=False)

# %% t5 generate | https://huggingface.co/docs/transformers/main/en/tasks/translation
import torch
from transformers import T5Config, T5ForConditionalGeneration

config = T5Config(decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda().eval()
ids = torch.randint(2, 32000, (8, 128), device="cuda")
out = model.generate(input_ids=ids, max_new_tokens=64)

# %% whisper generate | https://huggingface.co/docs/transformers/main/en/model_doc/whisper
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

config = WhisperConfig(
    d_model=512,
    encoder_layers=6,
    decoder_layers=6,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
)
model = WhisperForConditionalGeneration(config).half().to("cuda")
features = torch.randn(4, 80, 3000, device="cuda", dtype=torch.float16)
ids = model.generate(features, max_new_tokens=100)

# %% trainer | https://huggingface.co/docs/transformers/main/en/training
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        ids = torch.randint(0, 30000, (128,))
        return {
            "input_ids": ids,
            "attention_mask": torch.ones(128, dtype=torch.long),
            "labels": index % 2,
        }


model = BertForSequenceClassification(BertConfig(num_labels=2))
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    num_train_epochs=1,
    fp16=True,
    eval_strategy="epoch",
    report_to="none",
    logging_steps=5,
)
trainer = Trainer(model=model, args=args, train_dataset=Reviews(), eval_dataset=Reviews())
trainer.train()
trainer.evaluate()

# %% trainer causal checkpointing | https://huggingface.co/docs/transformers/main/en/perf_train_gpu_one
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16
)
model = LlamaForCausalLM(config)
data = [
    {"input_ids": torch.randint(0, 32000, (512,)), "labels": torch.randint(0, 32000, (512,))}
    for _ in range(64)
]
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    bf16=True,
    gradient_checkpointing=True,
    optim="adafactor",
    report_to="none",
    max_steps=6,
    save_strategy="no",
)
Trainer(model=model, args=args, train_dataset=data).train()

# %% trainer adamw 8bit | https://huggingface.co/docs/transformers/main/en/perf_train_gpu_one
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config())
data = [
    {"input_ids": torch.randint(0, 50000, (256,)), "labels": torch.randint(0, 50000, (256,))}
    for _ in range(64)
]
args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    fp16=True,
    optim="adamw_bnb_8bit",
    max_steps=3,
    report_to="none",
)
Trainer(model=model, args=args, train_dataset=data).train()

# %% manual loop scheduler | https://huggingface.co/docs/transformers/main/en/training
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, get_scheduler

model = DistilBertForSequenceClassification(DistilBertConfig()).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=10)
for _ in range(10):
    batch = torch.randint(0, 30000, (8, 256), device="cuda")
    loss = model(input_ids=batch, labels=torch.zeros(8, dtype=torch.long, device="cuda")).loss
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(loss.item())

# %% trainer predict | https://huggingface.co/docs/transformers/main/en/main_classes/trainer
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_labels=3)
data = [
    {"input_ids": torch.randint(0, 30000, (64,)), "labels": torch.tensor(i % 3)} for i in range(70)
]
args = TrainingArguments(output_dir="out", per_device_eval_batch_size=32, report_to="none")
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=args,
    compute_metrics=lambda p: {"acc": float((p.predictions.argmax(-1) == p.label_ids).mean())},
)
metrics = trainer.evaluate(data)
output = trainer.predict(data)

# %% pipeline classification | https://huggingface.co/docs/transformers/main/en/tasks/sequence_classification
import torch
from transformers import RobertaConfig, RobertaForSequenceClassification

model = RobertaForSequenceClassification(RobertaConfig(num_labels=2)).half().cuda().eval()
with torch.inference_mode():
    ids = torch.randint(3, 50000, (32, 128), device="cuda")
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    predicted = logits.argmax(-1).tolist()

# %% vit classification | https://huggingface.co/docs/transformers/main/en/tasks/image_classification
import torch
from transformers import ViTConfig, ViTForImageClassification

model = ViTForImageClassification(ViTConfig(num_labels=101)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for _ in range(3):
    images = torch.randn(16, 3, 224, 224, device="cuda")
    loss = model(pixel_values=images, labels=torch.randint(0, 101, (16,), device="cuda")).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% clip | https://huggingface.co/docs/transformers/main/en/model_doc/clip
import torch
from transformers import CLIPConfig, CLIPModel

model = CLIPModel(CLIPConfig()).cuda()
out = model(
    input_ids=torch.randint(0, 49000, (16, 77), device="cuda"),
    pixel_values=torch.randn(16, 3, 224, 224, device="cuda"),
    return_loss=True,
)
out.loss.backward()

# %% wav2vec2 ctc | https://huggingface.co/docs/transformers/main/en/tasks/asr
import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

config = Wav2Vec2Config(num_hidden_layers=4, mask_time_prob=0.0)
model = Wav2Vec2ForCTC(config).cuda()
labels = torch.randint(1, 30, (2, 20), device="cuda")
model(torch.randn(2, 16000, device="cuda"), labels=labels).loss.backward()

# %% segformer | https://huggingface.co/docs/transformers/main/en/tasks/semantic_segmentation
import torch
from transformers import SegformerConfig, SegformerForSemanticSegmentation

model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=19)).cuda()
labels = torch.randint(0, 19, (4, 256, 256), device="cuda")
model(pixel_values=torch.randn(4, 3, 256, 256, device="cuda"), labels=labels).loss.backward()

# %% mamba generate | https://huggingface.co/docs/transformers/main/en/model_doc/mamba
import torch
from transformers import MambaConfig, MambaForCausalLM

model = MambaForCausalLM(MambaConfig(hidden_size=256, num_hidden_layers=4)).cuda().eval()
ids = torch.randint(0, 50000, (1, 32), device="cuda")
out = model.generate(ids, max_new_tokens=16, pad_token_id=0)

# %% mixtral training | https://huggingface.co/docs/transformers/main/en/model_doc/mixtral
import torch
from transformers import MixtralConfig, MixtralForCausalLM

config = MixtralConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    num_local_experts=4,
)
model = MixtralForCausalLM(config).cuda()
ids = torch.randint(0, 32000, (2, 128), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()

# %% gemma generate | https://huggingface.co/docs/transformers/main/en/model_doc/gemma3
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

config = Gemma3TextConfig(
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    vocab_size=32000,
    sliding_window=64,
)
model = Gemma3ForCausalLM(config).to(torch.bfloat16).cuda().eval()
out = model.generate(torch.randint(2, 32000, (2, 48), device="cuda"), max_new_tokens=64)

# %% streamer | https://huggingface.co/docs/transformers/main/en/generation_features
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation.streamers import BaseStreamer


class Shown(BaseStreamer):
    def put(self, value):
        print(value.shape)

    def end(self):
        print("end")


model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda().eval()
ids = torch.randint(0, 50000, (1, 16), device="cuda")
model.generate(ids, max_new_tokens=16, streamer=Shown(), pad_token_id=50256)

# %% detr | https://huggingface.co/docs/transformers/main/en/tasks/object_detection
import torch
from transformers import YolosConfig, YolosForObjectDetection

config = YolosConfig(num_hidden_layers=4, image_size=[224, 224], num_detection_tokens=20)
model = YolosForObjectDetection(config).cuda()
out = model(pixel_values=torch.randn(2, 3, 224, 224, device="cuda"))
out.logits.sum().backward()

# %% from config by device map | https://huggingface.co/docs/transformers/main/en/models
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8
)
folder = tempfile.mkdtemp()
LlamaForCausalLM(config).save_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, device_map="auto", dtype=torch.bfloat16)
out = model(torch.randint(0, 32000, (1, 64), device="cuda"))

# %% prompt lookup | https://huggingface.co/docs/transformers/generation_strategies#assisted-decoding
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=512, intermediate_size=1376, num_hidden_layers=6, num_attention_heads=8
)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
ids = torch.randint(3, 32000, (1, 128), device="cuda")
out = model.generate(ids, prompt_lookup_num_tokens=3, max_new_tokens=60)

# %% quantized cache offloaded | https://huggingface.co/docs/transformers/kv_cache
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=1024,
    intermediate_size=2816,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=4,
)
model = LlamaForCausalLM(config).to("cuda", torch.float16).eval()
ids = torch.randint(3, 32000, (4, 256), device="cuda")
out = model.generate(ids, do_sample=False, max_new_tokens=20, cache_implementation="offloaded")

# %% memory by pynvml | https://huggingface.co/docs/transformers/model_memory_anatomy
from pynvml import nvmlDeviceGetHandleByIndex, nvmlDeviceGetMemoryInfo, nvmlInit
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    logging,
)
from datasets import Dataset
import numpy as np

logging.set_verbosity_error()


def print_gpu_utilization():
    nvmlInit()
    handle = nvmlDeviceGetHandleByIndex(0)
    info = nvmlDeviceGetMemoryInfo(handle)
    print(f"GPU memory occupied: {info.used // 1024**2} MB.")


def print_summary(result):
    print(f"Time: {result.metrics['train_runtime']:.2f}")
    print(f"Samples/second: {result.metrics['train_samples_per_second']:.2f}")
    print_gpu_utilization()


print_gpu_utilization()
torch.ones((1, 1)).to("cuda")
print_gpu_utilization()
ds = Dataset.from_dict(
    {"input_ids": np.random.randint(100, 30000, (64, 128)), "labels": np.random.randint(0, 2, 64)}
)
ds.set_format("pt")
model = BertForSequenceClassification(BertConfig(num_hidden_layers=4)).to("cuda")
print_gpu_utilization()
args = TrainingArguments(
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    gradient_checkpointing=True,
    fp16=True,
    output_dir="tmp",
    num_train_epochs=1,
    report_to="none",
    optim="adamw_torch_fused",
    dataloader_pin_memory=True,
    dataloader_num_workers=2,
)
print_summary(Trainer(model=model, args=args, train_dataset=ds).train())

# %% masked language from a vocabulary file | https://huggingface.co/docs/transformers/tasks/masked_language_modeling
from tokenizers import BertWordPieceTokenizer
from datasets import Dataset
from transformers import (
    BertTokenizerFast,
    DataCollatorForLanguageModeling,
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainingArguments,
)

texts = [f"the quick brown fox number {i} jumps over the lazy dog {i * i}" for i in range(200)]
w = BertWordPieceTokenizer()
w.train_from_iterator(texts, vocab_size=400, min_frequency=1)
w.save_model(".")
tok = BertTokenizerFast("vocab.txt")
data = Dataset.from_dict({"text": texts}).map(
    lambda r: tok(r["text"], truncation=True, max_length=32), batched=True, remove_columns=["text"]
)
model = RobertaForMaskedLM(
    RobertaConfig(
        vocab_size=500,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
    )
)
t = Trainer(
    model,
    TrainingArguments("out", max_steps=3, report_to="none", dataloader_num_workers=2),
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tok, mlm_probability=0.15),
)
t.train()

# %% compiled classifier | https://huggingface.co/docs/transformers/perf_torch_compile
import torch
from transformers import BertConfig, BertForSequenceClassification

model = BertForSequenceClassification(BertConfig(num_hidden_layers=2)).cuda()
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
for _ in range(3):
    ids = torch.randint(0, 30522, (8, 128), device="cuda")
    labels = torch.randint(0, 2, (8,), device="cuda")
    loss = compiled(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% transition scores of beams | https://huggingface.co/docs/transformers/generation_strategies
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config()).cuda().eval()
ids = torch.randint(0, 50000, (2, 32), device="cuda")
out = model.generate(
    ids,
    max_new_tokens=24,
    num_beams=5,
    do_sample=True,
    num_return_sequences=3,
    length_penalty=0.8,
    early_stopping=True,
    output_scores=True,
    return_dict_in_generate=True,
    pad_token_id=50256,
    eos_token_id=50256,
)
probs = model.compute_transition_scores(
    out.sequences, out.scores, out.beam_indices, normalize_logits=True
)
print(probs.shape)

# %% seq2seq trainer | https://huggingface.co/docs/transformers/tasks/translation
import numpy as np
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)
from tokenizers import Tokenizer, models

tok = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(
        models.WordLevel(
            {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{i}": i + 3 for i in range(500)}},
            unk_token="<unk>",
        )
    ),
    pad_token="<pad>",
    eos_token="</s>",
    unk_token="<unk>",
)
model = T5ForConditionalGeneration(T5Config(vocab_size=512, decoder_start_token_id=0, num_layers=4))
rng = np.random.default_rng(0)
rows = [
    {"input_ids": list(range(3, 3 + 20 + i % 30)), "labels": list(range(3, 20 + i % 10))}
    for i in range(48)
]
data = Dataset.from_list(rows)


def compute_metrics(eval_preds):
    preds, labels = eval_preds
    preds = np.where(preds != -100, preds, 0)
    return {"gen_len": float(np.mean([np.count_nonzero(p) for p in preds]))}


args = Seq2SeqTrainingArguments(
    output_dir="out",
    eval_strategy="epoch",
    per_device_train_batch_size=16,
    per_device_eval_batch_size=16,
    num_train_epochs=1,
    predict_with_generate=True,
    fp16=True,
    report_to="none",
    save_strategy="no",
    generation_max_length=24,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=args,
    train_dataset=data,
    eval_dataset=data.select(range(16)),
    data_collator=DataCollatorForSeq2Seq(tok, model=model),
    processing_class=tok,
    compute_metrics=compute_metrics,
)
trainer.train()

# %% quantized after saving | https://huggingface.co/docs/transformers/quantization/torchao
import torch
from torchao.quantization import Int8WeightOnlyConfig
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    LlamaConfig,
    LlamaForCausalLM,
    TorchAoConfig,
)

LlamaForCausalLM(
    LlamaConfig(
        vocab_size=8000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
).save_pretrained("base")
a = AutoModelForCausalLM.from_pretrained(
    "base",
    dtype=torch.bfloat16,
    device_map="cuda",
    quantization_config=TorchAoConfig(Int8WeightOnlyConfig()),
)
a.generate(torch.randint(0, 8000, (1, 32), device="cuda"), max_new_tokens=8, pad_token_id=0)
b = AutoModelForCausalLM.from_pretrained(
    "base",
    quantization_config=BitsAndBytesConfig(
        load_in_8bit=True, llm_int8_enable_fp32_cpu_offload=True
    ),
    device_map="auto",
)
b.generate(torch.randint(0, 8000, (1, 32), device="cuda"), max_new_tokens=8, pad_token_id=0)
print(b.get_memory_footprint())
