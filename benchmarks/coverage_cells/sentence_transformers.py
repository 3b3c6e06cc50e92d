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
