# BERT of transformers, fine-tuned on padded sentences, autocast to float16 with a GradScaler.
import torch
from transformers import BertConfig, BertForSequenceClassification

batch_size = 32
length = 128
layers = 12
width = 768

config = BertConfig(
    num_hidden_layers=layers,
    hidden_size=width,
    num_attention_heads=width // 64,
    intermediate_size=4 * width,
    num_labels=3,
)
model = BertForSequenceClassification(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
scaler = torch.amp.GradScaler("cuda")
model.train()
for _ in range(2):
    ids = torch.randint(1, config.vocab_size, (batch_size, length))
    mask = torch.ones_like(ids)
    mask[::2, length // 2 :] = 0
    batch = {
        "input_ids": ids.to("cuda"),
        "attention_mask": mask.to("cuda"),
        "labels": torch.randint(0, 3, (batch_size,)).to("cuda"),
    }
    with torch.amp.autocast("cuda"):
        outputs = model(**batch)
    scaler.scale(outputs.loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
