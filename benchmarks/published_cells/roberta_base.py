# roberta-base for multiple choice, float32: loaded.
import torch
from transformers import RobertaConfig, RobertaForMultipleChoice

config = RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1)
with torch.device("cuda"):
    model = RobertaForMultipleChoice(config).eval()
