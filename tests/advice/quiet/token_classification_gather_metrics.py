import torch
from torch import nn
model = nn.Sequential(nn.Embedding(2000, 128), nn.Linear(128, 9)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
train_dataloader = [{"input_ids": torch.randint(0, 2000, (16, 64)), "labels": torch.randint(0, 9, (16, 64))} for _ in range(6)]
eval_dataloader = train_dataloader[:2]
# --- cell
for epoch in range(2):
    model.train()
    for batch in train_dataloader:
        batch = {k: v.to("cuda") for k, v in batch.items()}
        logits = model(batch["input_ids"])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    true_predictions, true_labels = [], []
    for batch in eval_dataloader:
        with torch.no_grad():
            logits = model(batch["input_ids"].to("cuda"))
        predictions = logits.argmax(dim=-1)
        true_predictions += predictions.detach().cpu().clone().numpy().tolist()
        true_labels += batch["labels"].numpy().tolist()
