import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 21, 1)).cuda()
loader = [(torch.randn(4, 3, 64, 64), torch.randint(0, 21, (4, 64, 64))) for _ in range(4)]
# --- cell
class ConfusionMatrix:
    def __init__(self, n):
        self.n, self.mat = n, None
    def update(self, a, b):
        if self.mat is None:
            self.mat = torch.zeros((self.n, self.n), dtype=torch.int64, device=a.device)
        with torch.inference_mode():
            k = (a >= 0) & (a < self.n)
            inds = self.n * a[k].to(torch.int64) + b[k]
            self.mat += torch.bincount(inds, minlength=self.n**2).reshape(self.n, self.n)
    def compute(self):
        h = self.mat.float()
        return torch.diag(h).sum() / h.sum()

model.eval()
confmat = ConfusionMatrix(21)
with torch.inference_mode():
    for image, target in loader:
        image, target = image.to("cuda"), target.to("cuda")
        output = model(image)
        confmat.update(target.flatten(), output.argmax(1).flatten())
print(confmat.compute().item())
