# %% autoencoder | https://lightning.ai/docs/pytorch/stable/starter/introduction.html
import lightning as L
import torch
from torch import nn


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 32))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784))

    def training_step(self, batch, batch_idx):
        x = batch[0].flatten(1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


data = torch.utils.data.TensorDataset(torch.randn(1024, 1, 28, 28))
trainer = L.Trainer(max_epochs=1, accelerator="gpu", devices=1, precision="16-mixed", logger=False)
trainer.fit(LitAutoEncoder(), torch.utils.data.DataLoader(data, batch_size=64))
