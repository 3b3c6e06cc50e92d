import torch
from torch import nn
import torch.nn.functional as F
generator = nn.Sequential(nn.Linear(100, 256), nn.LeakyReLU(0.2), nn.Linear(256, 784), nn.Tanh()).cuda()
discriminator = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).cuda()
opt_g, opt_d = torch.optim.Adam(generator.parameters(), 2e-4), torch.optim.Adam(discriminator.parameters(), 2e-4)
loader = [torch.randn(64, 784) for _ in range(5)]
# --- cell
def adversarial_loss(y_hat, y):
    return F.binary_cross_entropy_with_logits(y_hat, y)

for imgs in loader:
    imgs = imgs.cuda()
    z = torch.randn(imgs.shape[0], 100).type_as(imgs)
    for p in discriminator.parameters():
        p.requires_grad_(False)
    generated_imgs = generator(z)
    valid = torch.ones(imgs.size(0), 1).type_as(imgs)
    g_loss = adversarial_loss(discriminator(generated_imgs), valid)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
    for p in discriminator.parameters():
        p.requires_grad_(True)
    real_loss = adversarial_loss(discriminator(imgs), valid)
    fake = torch.zeros(imgs.size(0), 1).type_as(imgs)
    fake_loss = adversarial_loss(discriminator(generator(z).detach()), fake)
    d_loss = (real_loss + fake_loss) / 2
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
