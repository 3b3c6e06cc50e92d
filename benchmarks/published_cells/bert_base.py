# bert-base-uncased with a masked language model's head, float32: loaded, or a forward pass of a row.
import torch
from transformers import BertConfig, BertForMaskedLM

loading_only = 0
batch_size = 1
length = 16

if loading_only:
    with torch.device("cuda"):  # the decoder's weight is tied only later
        model = BertForMaskedLM(BertConfig()).eval()
else:
    model = BertForMaskedLM(BertConfig()).eval().to("cuda")
    ids = torch.randint(0, 30522, (batch_size, length), device="cuda")
    kinds = torch.zeros(batch_size, length, dtype=torch.int64, device="cuda")
    mask = torch.ones(batch_size, length, dtype=torch.int64, device="cuda")
    with torch.inference_mode():
        out = model(input_ids=ids, token_type_ids=kinds, attention_mask=mask)
