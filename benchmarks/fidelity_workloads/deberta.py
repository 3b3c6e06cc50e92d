# DeBERTa v2: disentangled attention, masked words, float16; AdamW.
import torch
from transformers import DebertaV2Config, DebertaV2ForMaskedLM

batch_size = 8
length = 128
width = 256
layers = 3

config = DebertaV2Config(
    hidden_size=width,
    intermediate_size=4 * width,
    num_hidden_layers=layers,
    num_attention_heads=8,
    vocab_size=8000,
    relative_attention=True,
    position_buckets=64,
    pos_att_type=["p2c", "c2p"],
    norm_rel_ebd="layer_norm",
    share_att_key=True,
)
model = DebertaV2ForMaskedLM(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cuda")
for step in range(2):
    tokens = torch.randint(3, 8000, (batch_size, length), device="cuda")
    labels = tokens
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(input_ids=tokens, labels=labels).loss
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
