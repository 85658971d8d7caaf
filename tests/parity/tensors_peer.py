"""Two towers with a mean squared error and a binary cross entropy in plain PyTorch, for comparison.

peer.py calls `run` with {"make": path, "samples"}, which writes random samples with safetensors' own library, or with a
run, which returns {"losses", "norms", "evaluation": {"loss", "mean_absolute_error", "accuracy"}, "tensors"}: `data` (the
file of samples, read in its order), `weights` ({name: values}), `steps`, `samples` a step over all ranks, `microbatch`
(of a rank), `ranks` (more than one: DistributedDataParallel over Gloo, one process each), `kind` and `lr` of the
optimizer, and `mistake`: "" or one of MISTAKES, to show that the test's limits catch it.
"""
import contextlib
import math

import safetensors.torch
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from peer_ranks import share_of, train_ranks

MISTAKES = ("swapped_targets", "mean_of_ranks", "sum_of_items", "no_clicks")


def make(path, samples):
    generator = torch.Generator().manual_seed(7)
    user = torch.randn(samples, 8, generator=generator)
    items = torch.randint(53, (samples, 3), generator=generator)
    rating = user[:, 0] + 0.1 * items[:, 0] - 2
    clicked = (user[:, 1] + torch.randn(samples, generator=generator) > 0).float()
    # In no particular order, and with one that the model does not read.
    safetensors.torch.save_file({"rating": rating, "user": user, "unused": torch.zeros(5), "items": items,
                                 "clicked": clicked}, path)


class Towers(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        self.user, self.items = nn.Linear(8, 11), nn.Embedding(53, 11)
        self.mistake = mistake

    def forward(self, user, items):
        found = self.items(items)
        return torch.cat([self.user(user).relu(), found.sum(1) if self.mistake == "sum_of_items" else found.mean(1)], 1)


class Model(nn.Module):
    """Names its tensors as the library does."""

    def __init__(self, mistake):
        super().__init__()
        self.towers, self.mixer, self.head = Towers(mistake), nn.Sequential(nn.Linear(22, 13), nn.Tanh()), nn.Linear(13, 2)

    def forward(self, user, items):
        return self.head(self.mixer(self.towers(user, items)))


def loss_of(y, batch, mistake):
    rating, clicked = y[:, 0], y[:, 1]
    if mistake == "swapped_targets":
        rating, clicked = clicked, rating
    loss = F.mse_loss(rating, batch["rating"], reduction="sum")
    if mistake != "no_clicks":
        loss = loss + F.binary_cross_entropy_with_logits(clicked, batch["clicked"], reduction="sum")
    return loss


def train(config, rank=0):
    mistake, ranks, b, rows = config["mistake"], config["ranks"], config["samples"], config["microbatch"]
    assert mistake in ("",) + MISTAKES
    data = safetensors.torch.load_file(config["data"])
    model = Model(mistake)
    state = {name: torch.tensor(values).view_as(model.state_dict()[name]) for name, values in config["weights"].items()}
    model.load_state_dict(state)
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2]},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    if config["kind"] == "sgd":
        optimizer = torch.optim.SGD(groups, lr=config["lr"], momentum=0.9, weight_decay=5e-3)
    else:
        optimizer = torch.optim.AdamW(groups, lr=config["lr"], weight_decay=5e-3)
    first, count = share_of(b, ranks, rank)
    microbatches = math.ceil(share_of(b, ranks, 0)[1] / rows)
    losses, norms = [], []
    for step in range(config["steps"]):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        divisor = count * ranks if mistake == "mean_of_ranks" else b
        for m in range(microbatches):
            part = slice(step * b + first + m * rows, step * b + first + min(count, (m + 1) * rows))
            batch = {name: tensor[part] for name, tensor in data.items()}
            with contextlib.nullcontext() if m + 1 == microbatches or ranks == 1 else wrapped.no_sync():
                loss = loss_of(wrapped(batch["user"], batch["items"]), batch, mistake)
                (loss * ranks / divisor).backward()  # DDP averages gradients over ranks
            total += loss.item() / divisor
        if ranks > 1:
            dist.all_reduce(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(total.item())
    model.eval()
    with torch.no_grad():
        batch = {name: tensor[:b] for name, tensor in data.items()}
        y = model(batch["user"], batch["items"])
        evaluation = {"loss": loss_of(y, batch, mistake).item() / b,
                      "mean_absolute_error": (y[:, 0] - batch["rating"]).abs().mean().item(),
                      "accuracy": ((y[:, 1] > 0) == (batch["clicked"] > 0.5)).float().mean().item()}
    tensors = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    return {"losses": losses, "norms": norms, "evaluation": evaluation, "tensors": tensors}


def run(config):
    if "make" in config:
        make(config["make"], config["samples"])
        return {}
    return train(config) if config["ranks"] == 1 else train_ranks(train, config)
