# %% loss by hand | https://sbert.net/docs/sentence_transformer/training_overview.html
import torch
from sentence_transformers import SentenceTransformer, losses, models
from transformers import BertConfig, BertModel


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(num_hidden_layers=6))

    def forward(self, features, **kwargs):
        features["token_embeddings"] = self.bert(features["input_ids"], features["attention_mask"])[
            0
        ]
        return features


model = SentenceTransformer(modules=[Encoder(), models.Pooling(768)], device="cuda")
loss = losses.MultipleNegativesRankingLoss(model)
features = [
    {
        "input_ids": torch.randint(0, 30000, (16, 64), device="cuda"),
        "attention_mask": torch.ones(16, 64, device="cuda"),
    }
    for _ in range(2)
]
loss(features, None).backward()

# %% trainer | https://sbert.net/docs/sentence_transformer/training_overview.html
import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast
import tempfile

words = {"[UNK]": 0, "[PAD]": 1, **{f"w{i}": i + 2 for i in range(1000)}}
backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
folder = tempfile.mkdtemp()
PreTrainedTokenizerFast(
    tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
).save_pretrained(folder)
BertModel(
    BertConfig(
        vocab_size=1002,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
).save_pretrained(folder)
word = Transformer(folder)
model = SentenceTransformer(modules=[word, Pooling(256)], device="cuda")
data = Dataset.from_dict(
    {
        "anchor": [f"w{i} w5 w6 w7" for i in range(64)],
        "positive": [f"w{i} w9 w10" for i in range(64)],
    }
)
args = SentenceTransformerTrainingArguments(
    output_dir="out", max_steps=3, per_device_train_batch_size=16, report_to="none", fp16=True
)
SentenceTransformerTrainer(
    model=model, args=args, train_dataset=data, loss=losses.MultipleNegativesRankingLoss(model)
).train()
emb = model.encode(["w1 w2", "w3"])
print(model.similarity(emb, emb))
