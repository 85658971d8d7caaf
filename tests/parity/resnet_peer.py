"""ResNet training in plain PyTorch, for comparison: torchvision's model, or He et al.'s for small images; torch.optim.SGD.

peer.py calls `run` with a run, which returns {"losses", "norms", "evaluation": {"loss", "top1", "top5"}}, or with
{"export", "images"}, which returns {"loss", "top1"}. A run: the model's numbers, the optimizer's, `data` (float32 images
[samples, C, H, W], then as many int64 labels), `weights` (raw float32, tensors one after another as `tensors` lists
them), `steps`, `samples` a step over all ranks, `microbatch` (of a rank), `ranks` (more than one:
DistributedDataParallel over Gloo, one process each; with `sync_bn`, and SyncBatchNorm), `frozen` (names of parameters
that need no gradient), `out` (the file for the final
tensors, as `weights`), and `mistake`: "" or one of MISTAKES, to show that the test's limits catch it.
"""
import contextlib
import functools
import importlib
import importlib.util
import json
import math
import os
import sys
import types

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel

from peer_ranks import share_of, train_ranks

MISTAKES = ("bn_eps", "bn_momentum", "no_smoothing", "no_buffers", "nesterov", "own_statistics", "equal_counts",
            "own_sums", "own_count")


@functools.cache
def torchvision_resnet():
    """torchvision.models.resnet without the rest of the package, whose compiled operators are built for CUDA."""
    sys.path.append(os.path.join(sys.prefix, "alone"))  # tools/fetch_torch.sh
    place = importlib.util.find_spec("torchvision").submodule_search_locations[0]
    for name, folder in (("torchvision", place), ("torchvision.models", os.path.join(place, "models"))):
        package = types.ModuleType(name)
        package.__path__ = [folder]
        sys.modules[name] = package
    return importlib.import_module("torchvision.models.resnet")


class SyncBatchNormOnCpu(nn.BatchNorm2d):
    """torch.nn.SyncBatchNorm, whose module (and DistributedDataParallel) refuses CPUs; its function does not."""

    def forward(self, x):
        if not self.training:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0, self.eps)
        return SyncBatchNorm.apply(x, self.weight, self.bias, self.running_mean, self.running_var, self.eps,
                                   self.momentum, dist.group.WORLD, dist.get_world_size())


def kernels_of_sync_batch_norm(mistake):
    """The kernels that torch has for GPUs only (aten/src/ATen/native/cuda/Normalization.cuh), on CPUs, in float64."""
    def per_channel(v):
        return v.double().view(1, -1, 1, 1)

    def stats(x, eps):
        mean = x.double().mean((0, 2, 3))
        variance = (x.double() - per_channel(mean)).square().mean((0, 2, 3))
        return mean.float(), (variance + eps).rsqrt().float()

    def gather_stats(x, means, invstds, running_mean, running_var, momentum, eps, counts):
        if mistake == "own_statistics":
            own = [dist.get_rank()]
            means, invstds, counts = means[own], invstds[own], counts[own]
        weights = torch.ones_like(counts) if mistake == "equal_counts" else counts
        weights = (weights / weights.sum()).double()[:, None]
        variances = invstds.double().pow(-2) - eps
        mean = (means.double() * weights).sum(0)
        variance = ((variances + (means.double() - mean).square()) * weights).sum(0)
        n = counts.sum().item()
        running_mean.mul_(1 - momentum).add_(mean.float(), alpha=momentum)
        running_var.mul_(1 - momentum).add_((variance * n / (n - 1)).float(), alpha=momentum)
        return mean.float(), (variance + eps).rsqrt().float()

    def elemt(x, weight, bias, mean, invstd, eps):
        y = (x.double() - per_channel(mean)) * per_channel(invstd) * per_channel(weight) + per_channel(bias)
        return y.float()

    def backward_reduce(dy, x, mean, invstd, weight, *_):
        sum_dy = dy.double().sum((0, 2, 3))
        sum_dy_xmu = (dy.double() * (x.double() - per_channel(mean))).sum((0, 2, 3))
        kept.append((sum_dy, sum_dy_xmu))
        return sum_dy.float(), sum_dy_xmu.float(), (sum_dy_xmu * invstd.double()).float(), sum_dy.float()

    def backward_elemt(dy, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts):
        own_dy, own_dy_xmu = kept.pop()
        if mistake == "own_sums":
            sum_dy, sum_dy_xmu = own_dy, own_dy_xmu
        n = x.numel() // x.size(1) if mistake == "own_count" else counts.sum().item()
        dx = dy.double() - per_channel(sum_dy) / n
        dx -= (x.double() - per_channel(mean)) * per_channel(invstd).square() * per_channel(sum_dy_xmu) / n
        return (dx * per_channel(invstd) * per_channel(weight)).float()

    kept = []  # a backward_elemt follows each backward_reduce
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in (("batch_norm_stats", stats), ("batch_norm_gather_stats_with_counts", gather_stats),
                         ("batch_norm_elemt", elemt), ("batch_norm_backward_reduce", backward_reduce),
                         ("batch_norm_backward_elemt", backward_elemt)):
        library.impl(name, kernel, "CPU")
    return library


def synchronize(module):
    """As SyncBatchNorm.convert_sync_batchnorm: in place, with the same parameters and buffers."""
    for child in module.modules():
        if isinstance(child, nn.BatchNorm2d):
            child.__class__ = SyncBatchNormOnCpu


class SmallBlock(nn.Module):
    """He et al. 2016, section 4.2, with the shortcut of option A."""

    def __init__(self, planes_in, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride, self.added = stride, planes - planes_in

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        half = self.added // 2
        return F.relu(y + F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, half, self.added - half)))


class SmallResnet(nn.Module):
    def __init__(self, depth, width, classes, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        planes = width
        for stage in range(3):
            blocks = []
            for i in range((depth - 2) // 6):
                out = width * 2 ** stage
                blocks.append(SmallBlock(planes, out, 2 if stage > 0 and i == 0 else 1))
                planes = out
            setattr(self, "layer%d" % (stage + 1), nn.Sequential(*blocks))
        self.fc = nn.Linear(planes, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def make_model(config):
    depth = config["depth"]
    if depth % 6 == 2 and depth not in (50, 152):
        return SmallResnet(depth, config["width"], config["classes"], config["channels"])
    resnet = torchvision_resnet()
    model = getattr(resnet, "resnet%d" % depth)(num_classes=config["classes"])
    if config["stem"] == "cifar":
        model.conv1 = nn.Conv2d(config["channels"], 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    return model


def load(model, config):
    flat, at, state = numpy.fromfile(config["weights"], dtype=numpy.float32), 0, {}
    for name, shape in config["tensors"]:
        n = math.prod(shape)
        state[name] = torch.from_numpy(flat[at:at + n].copy()).view(shape)
        at += n
    assert at == flat.size, (at, flat.size)
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    assert all(key.endswith("num_batches_tracked") for key in missing.missing_keys), missing
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.2 if config["mistake"] == "bn_momentum" else config["bn_momentum"]
            module.eps = 1e-3 if config["mistake"] == "bn_eps" else module.eps


def train(config, rank=0):
    assert config["mistake"] in ("",) + MISTAKES
    ranks, b, rows = config["ranks"], config["samples"], config["microbatch"]
    shape = (-1, config["channels"], config["image"], config["image"])
    total = config["steps"] * b
    with open(config["data"], "rb") as f:
        images = torch.from_numpy(numpy.fromfile(f, numpy.float32, total * math.prod(shape[1:]))).view(shape)
        labels = torch.from_numpy(numpy.fromfile(f, numpy.int64, total))
    model = make_model(config)
    load(model, config)
    if config["sync_bn"] and ranks > 1:
        library = kernels_of_sync_batch_norm(config["mistake"])  # as long as it lives
        synchronize(model)
    for name in config["frozen"]:
        model.get_parameter(name).requires_grad_(False)
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.dim() >= 2]
    plain = [p for p in trained if p.dim() < 2]
    optimizer = torch.optim.SGD([{"params": decay}, {"params": plain, "weight_decay": 0.0}], lr=config["lr"],
                                momentum=config["momentum"], weight_decay=config["weight_decay"],
                                nesterov=config["mistake"] == "nesterov")
    smoothing = 0.0 if config["mistake"] == "no_smoothing" else config["label_smoothing"]
    first, count = share_of(b, ranks, rank)
    microbatches = math.ceil(share_of(b, ranks, 0)[1] / rows)
    losses, norms = [], []
    for step in range(config["steps"]):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for m in range(microbatches):
            begin, end = step * b + first + m * rows, step * b + first + min(count, (m + 1) * rows)
            with contextlib.nullcontext() if m + 1 == microbatches or ranks == 1 else wrapped.no_sync():
                loss = F.cross_entropy(wrapped(images[begin:end]), labels[begin:end], reduction="sum",
                                       label_smoothing=smoothing)
                (loss * ranks / b).backward()  # DDP averages gradients over ranks
            total += loss.item() / b
        if ranks > 1:
            dist.all_reduce(total)
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), config["clip_norm"]).item())
        optimizer.step()
        losses.append(total.item())
    if config["mistake"] == "no_buffers":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
    model.eval()
    with torch.no_grad():
        logits = model(images[:b])
        order = logits.argsort(1, descending=True)
        hits = [(order[:, :k] == labels[:b, None]).any(1).float().mean().item() for k in (1, 5)]
        evaluation = {"loss": F.cross_entropy(logits, labels[:b]).item(), "top1": hits[0], "top5": hits[1]}
    if rank == 0:
        state = model.state_dict()
        with open(config["out"], "wb") as f:
            for name, _ in config["tensors"]:
                state[name].to(torch.float32).numpy().tofile(f)
    return {"losses": losses, "norms": norms, "evaluation": evaluation}


def evaluate_export(config):
    """Mean loss and top-1 of an exported folder on a file in CIFAR-10's layout."""
    import safetensors.torch
    with open(os.path.join(config["export"], "config.json"), encoding="utf-8") as f:
        described = json.load(f)
    with open(os.path.join(config["export"], "preprocessor_config.json"), encoding="utf-8") as f:
        preprocessing = json.load(f)
    model = make_model(described)
    state = safetensors.torch.load_file(os.path.join(config["export"], "model.safetensors"))
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys, missing
    assert all(key.endswith("num_batches_tracked") for key in missing.missing_keys), missing
    records = torch.from_numpy(numpy.fromfile(config["images"], numpy.uint8)).view(-1, 3073)
    labels, pixels = records[:, 0].long(), records[:, 1:].view(-1, 3, 32, 32).float() / 255
    mean, std = (torch.tensor(preprocessing[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
    model.eval()
    with torch.no_grad():
        logits = model((pixels - mean) / std)
    return {"loss": F.cross_entropy(logits, labels).item(), "top1": (logits.argmax(1) == labels).float().mean().item()}


def run(config):
    if "export" in config:
        return evaluate_export(config)
    return train_ranks(train, config) if config["ranks"] > 1 else train(config)
