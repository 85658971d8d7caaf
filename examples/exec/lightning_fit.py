"""A model trained by Lightning, as anyone writes it for torchrun.

torchrun --nproc_per_node 2 examples/exec/lightning_fit.py
muster run --ranks 2 -- python examples/exec/lightning_fit.py

It continues from `last.ckpt` in its folder, with any number of ranks. What Lightning logs for TensorBoard are the job's
metrics.
"""

import argparse
import os
import time

import torch

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl  # the same, in its own package


class Regression(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--folder", default=f"/tmp/{os.environ.get('MUSTER_JOB_ID', 'lightning')}")
    args = parser.parse_args()

    pl.seed_everything(0)
    inputs = torch.randn(4096, 16)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(dim=1, keepdim=True) / 4).tanh())
    checkpoint = pl.callbacks.ModelCheckpoint(dirpath=args.folder, save_last=True, every_n_train_steps=10)
    trainer = pl.Trainer(
        accelerator="auto",
        # Lightning does not read WORLD_SIZE: devices and nodes must be given.
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        strategy="ddp",
        max_steps=args.steps,
        default_root_dir=args.folder,
        callbacks=[checkpoint],
        log_every_n_steps=1,
        enable_progress_bar=False,
    )
    last = os.path.join(args.folder, "last.ckpt")
    trainer.fit(
        Regression(args.lr),
        torch.utils.data.DataLoader(data, batch_size=16, shuffle=True),
        ckpt_path=last if os.path.exists(last) else None,
    )
    # A thread of Gloo that still frees a tensor while Python shuts down aborts the process (pytorch/pytorch#179291).
    if not torch.cuda.is_available():
        time.sleep(1)


if __name__ == "__main__":
    main()
