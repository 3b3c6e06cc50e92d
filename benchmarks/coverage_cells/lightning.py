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

# %% callbacks and accumulation | https://lightning.ai/docs/pytorch/stable/common/trainer.html
import lightning as L
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(1024, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 10)
        )

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True, on_epoch=True)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": opt,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(opt),
                "monitor": "val_loss",
            },
        }


data = TensorDataset(torch.randn(512, 1024), torch.randint(0, 10, (512,)))
trainer = L.Trainer(
    max_epochs=2,
    accelerator="gpu",
    devices=1,
    precision="16-mixed",
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    callbacks=[
        EarlyStopping("val_loss", patience=3),
        ModelCheckpoint(monitor="val_loss", save_top_k=1),
        LearningRateMonitor(),
    ],
    logger=None,
    enable_progress_bar=False,
)
trainer.fit(Lit(), DataLoader(data, batch_size=64, shuffle=True), DataLoader(data, batch_size=64))
trainer.validate(ckpt_path="best", dataloaders=DataLoader(data, batch_size=64))

# %% gan manual optimization | https://lightning.ai/docs/pytorch/stable/notebooks/lightning_examples/basic-gan.html
import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g = nn.Sequential(
            nn.Linear(100, 256),
            nn.LeakyReLU(0.2),
            nn.Linear(256, 1024),
            nn.BatchNorm1d(1024),
            nn.LeakyReLU(0.2),
            nn.Linear(1024, 3072),
            nn.Tanh(),
        )
        self.d = nn.Sequential(
            nn.Linear(3072, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1), nn.Sigmoid()
        )

    def training_step(self, batch):
        (imgs,) = batch
        og, od = self.optimizers()
        z = torch.randn(imgs.shape[0], 100).type_as(imgs)
        self.toggle_optimizer(og)
        valid = torch.ones(imgs.size(0), 1).type_as(imgs)
        g_loss = nn.functional.binary_cross_entropy(self.d(self.g(z)), valid)
        self.log("g_loss", g_loss, prog_bar=True)
        self.manual_backward(g_loss)
        og.step()
        og.zero_grad()
        self.untoggle_optimizer(og)
        self.toggle_optimizer(od)
        real = nn.functional.binary_cross_entropy(self.d(imgs), valid)
        fake = nn.functional.binary_cross_entropy(
            self.d(self.g(z).detach()), torch.zeros_like(valid)
        )
        self.manual_backward((real + fake) / 2)
        od.step()
        od.zero_grad()
        self.untoggle_optimizer(od)

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.g.parameters(), 2e-4),
            torch.optim.Adam(self.d.parameters(), 2e-4),
        ], []


L.Trainer(
    accelerator="auto",
    devices=1,
    max_epochs=1,
    limit_train_batches=3,
    logger=False,
    enable_checkpointing=False,
).fit(GAN(), DataLoader(TensorDataset(torch.randn(512, 3072)), batch_size=128))

# %% fabric | https://lightning.ai/docs/fabric/stable/fundamentals/convert.html
import torch
from lightning.fabric import Fabric

fabric = Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
fabric.launch()
model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)
dataloader = fabric.setup_dataloaders(
    torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(256, 512)), batch_size=64
    )
)
for (x,) in dataloader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()

# %% swa and predict | https://lightning.ai/docs/pytorch/stable/advanced/training_tricks.html
import lightning as L
import torch
import torchmetrics
import torchvision
from lightning.pytorch.callbacks import LearningRateFinder, StochasticWeightAveraging
from torch.utils.data import DataLoader, TensorDataset


class LitResnet(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.save_hyperparameters()
        self.model = torchvision.models.resnet18(num_classes=10)
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)
        self.example_input_array = torch.zeros(2, 3, 32, 32)

    def forward(self, x):
        return torch.nn.functional.log_softmax(self.model(x), dim=1)

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.nll_loss(self(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self(batch[0])
        self.accuracy(logits.argmax(1), batch[1])
        self.log("val_acc", self.accuracy, prog_bar=True)

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(
                    optimizer, 0.1, epochs=2, steps_per_epoch=4
                ),
                "interval": "step",
            },
        }


data = TensorDataset(torch.randn(256, 3, 32, 32), torch.randint(0, 10, (256,)))
trainer = L.Trainer(
    max_epochs=2,
    accelerator="auto",
    devices=1,
    precision="bf16-mixed",
    callbacks=[StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1)],
    enable_progress_bar=False,
    logger=False,
    enable_checkpointing=False,
    num_sanity_val_steps=1,
)
model = LitResnet()
trainer.fit(model, DataLoader(data, 64, shuffle=True, num_workers=2), DataLoader(data, 64))
predictions = trainer.predict(model, DataLoader(data, 64))

# %% ema and checkpoints | https://lightning.ai/docs/pytorch/stable/extensions/callbacks.html
import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    RichProgressBar,
)
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import resnet34
import torchmetrics


class Lit(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = resnet34(weights=None, num_classes=10)
        self.acc = torchmetrics.Accuracy("multiclass", num_classes=10)

    def training_step(self, batch, i):
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, i):
        x, y = batch
        out = self.net(x)
        self.acc(out, y)
        self.log("val_acc", self.acc, on_epoch=True)
        self.log("val_loss", F.cross_entropy(out, y))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return {
            "optimizer": opt,
            "lr_scheduler": {
                "scheduler": torch.optim.lr_scheduler.OneCycleLR(
                    opt, 1e-2, total_steps=self.trainer.estimated_stepping_batches
                ),
                "interval": "step",
            },
        }


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(
            TensorDataset(torch.randn(96, 3, 64, 64), torch.randint(0, 10, (96,))), 32, shuffle=True
        )

    def val_dataloader(self):
        return DataLoader(
            TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,))), 32
        )


trainer = L.Trainer(
    max_epochs=2,
    accelerator="gpu",
    devices=1,
    precision="16-mixed",
    gradient_clip_val=0.5,
    callbacks=[
        ModelCheckpoint(monitor="val_acc", mode="max", save_top_k=1),
        EarlyStopping("val_loss"),
        LearningRateMonitor(),
        EMAWeightAveraging(),
    ],
    enable_progress_bar=False,
    logger=L.pytorch.loggers.CSVLogger("logs"),
)
trainer.fit(Lit(), datamodule=Data())
trainer.validate(datamodule=Data(), ckpt_path="best")
