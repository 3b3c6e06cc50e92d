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

# %% cross encoder | https://sbert.net/docs/cross_encoder/training_overview.html
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models as tm, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

words = {
    "[UNK]": 0,
    "[PAD]": 1,
    "[CLS]": 2,
    "[SEP]": 3,
    "[MASK]": 4,
    **{f"w{i}": i + 5 for i in range(200)},
}
b = Tokenizer(tm.WordLevel(words, unk_token="[UNK]"))
b.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(
    tokenizer_object=b,
    pad_token="[PAD]",
    unk_token="[UNK]",
    cls_token="[CLS]",
    sep_token="[SEP]",
    mask_token="[MASK]",
).save_pretrained("ce")
BertForSequenceClassification(
    BertConfig(
        vocab_size=205,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        num_labels=1,
    )
).save_pretrained("ce")
model = CrossEncoder("ce", num_labels=1, device="cuda")
print(model.predict([("w1 w2", "w3"), ("w4", "w5 w6")]))
print(model.rank("w1 w2", ["w3", "w4 w5", "w6"], top_k=2))
data = Dataset.from_dict(
    {
        "q": [f"w{i}" for i in range(32)],
        "a": [f"w{i + 1} w3" for i in range(32)],
        "label": [float(i % 2) for i in range(32)],
    }
)
CrossEncoderTrainer(
    model=model,
    args=CrossEncoderTrainingArguments("out", max_steps=2, report_to="none"),
    train_dataset=data,
    loss=BinaryCrossEntropyLoss(model),
).train()
