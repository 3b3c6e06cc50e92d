import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda"

model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CrossEntropyLoss()
X = torch.randn(4096, 512)
Y = torch.randint(0, 10, (4096,))
train_dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=2048)

# --- cell
def fits(bs):
    try:
        xb, yb = X[:bs].to(device), Y[:bs].to(device)
        criterion(model(xb), yb).backward()
        return True
    except torch.cuda.OutOfMemoryError:
        return False
    finally:
        model.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()

batch_size = 4096
while not fits(batch_size):
    batch_size //= 2
print(batch_size)
