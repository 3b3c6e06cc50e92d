# Whisper: speech encoder and text decoder, float32; AdamW.
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

batch_size = 4
width = 256
layers = 3

config = WhisperConfig(
    d_model=width,
    encoder_layers=layers,
    decoder_layers=layers,
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=4 * width,
    decoder_ffn_dim=4 * width,
    vocab_size=10000,
    max_source_positions=500,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)
model = WhisperForConditionalGeneration(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    features = torch.randn(batch_size, 80, 1000, device="cuda")
    labels = torch.randint(3, 10000, (batch_size, 60), device="cuda")
    loss = model(input_features=features, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
