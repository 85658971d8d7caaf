"""GPT-2 training in plain PyTorch, for comparison: own model code, torch.optim or Lion's paper, clip_grad_norm_.

peer.py calls `run` with a run, which returns {"losses": [...], "norms": [...]}.

A run: model numbers, optimizer numbers, `tokens` (a file of uint16), `weights` (a shard of a checkpoint, *.safetensors,
or raw float32, tensors one after another as `tensors` lists them), `steps`, `sequences`, `microbatch` (of a rank),
`ranks` (more than one: over Gloo, one process each, by `strategy`: "ddp" for DistributedDataParallel, or "fsdp2" for
fully_shard), and `mistake`: "" or one of MISTAKES, to show that the test's limits catch it.
"""
import array
import contextlib
import json
import math
import struct

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from peer_ranks import share_of, train_ranks

MISTAKES = ("betas", "eps", "decay_all", "gelu", "no_clip", "mean_of_means", "mean_of_ranks", "one_beta",
            "coupled_decay", "muon_embedding", "no_nesterov", "ns_steps",
            "beta2_decay")


class Model(torch.nn.Module):
    """The module that DistributedDataParallel needs around the tensors."""

    def __init__(self, weights, config):
        super().__init__()
        self.names, self.config = list(weights), config
        self.tensors = torch.nn.ParameterList(weights.values())

    def forward(self, ids):
        return forward(dict(zip(self.names, self.tensors)), ids, self.config)


def load_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        buffer = bytearray(f.read())
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__" or name.startswith("optimizer."):
            continue
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(buffer, dtype=torch.float32, count=(end - begin) // 4, offset=begin)
        weights[name] = flat.reshape(entry["shape"]).clone().requires_grad_(True)
    return weights


def load_weights(config):
    if config["weights"].endswith(".safetensors"):
        return load_safetensors(config["weights"])
    raw = array.array("f")
    with open(config["weights"], "rb") as f:
        raw.frombytes(f.read())
    flat = torch.frombuffer(raw, dtype=torch.float32).clone()
    weights, at = {}, 0
    for name, shape in config["tensors"]:
        n = math.prod(shape)
        weights[name] = flat[at:at + n].view(shape).clone().requires_grad_(True)
        at += n
    assert at == flat.numel(), (at, flat.numel())
    return weights


def forward(w, ids, config):
    """Logits [b, t, vocabulary] of GPT-2: pre-norm blocks, tanh GELU, tied head, projections stored [in, out]."""
    b, t = ids.shape
    heads, width = config["heads"], config["width"]
    gelu = "none" if config["mistake"] == "gelu" else "tanh"
    x = F.embedding(ids, w["wte.weight"]) + w["wpe.weight"][:t]
    for layer in range(config["layers"]):
        p = "h.%d." % layer
        h = F.layer_norm(x, (width,), w[p + "ln_1.weight"], w[p + "ln_1.bias"])
        qkv = h @ w[p + "attn.c_attn.weight"] + w[p + "attn.c_attn.bias"]
        q, k, v = (y.view(b, t, heads, width // heads).transpose(1, 2) for y in qkv.split(width, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
        mask = torch.ones(t, t, dtype=torch.bool).tril()
        a = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        a = a.transpose(1, 2).reshape(b, t, width)
        x = x + a @ w[p + "attn.c_proj.weight"] + w[p + "attn.c_proj.bias"]
        h = F.layer_norm(x, (width,), w[p + "ln_2.weight"], w[p + "ln_2.bias"])
        h = F.gelu(h @ w[p + "mlp.c_fc.weight"] + w[p + "mlp.c_fc.bias"], approximate=gelu)
        x = x + h @ w[p + "mlp.c_proj.weight"] + w[p + "mlp.c_proj.bias"]
    x = F.layer_norm(x, (width,), w["ln_f.weight"], w["ln_f.bias"])
    return x @ w["wte.weight"].t()


class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, arXiv 2302.06675, line by line."""

    def __init__(self, groups, lr, betas, mistake):
        super().__init__(groups, {"lr": lr, "betas": betas})
        self.mistake = mistake

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                g = p.grad + decay * p if self.mistake == "coupled_decay" else p.grad
                c = beta1 * m + (1 - beta1) * g
                if self.mistake != "coupled_decay":
                    p.mul_(1 - lr * decay)
                p.sub_(lr * torch.sign(c))
                beta = beta1 if self.mistake == "one_beta" else beta2
                m.copy_(beta * m + (1 - beta) * g)


class Muon:
    """torch.optim.Muon for the blocks' matrices, torch.optim.AdamW for the rest."""

    def __init__(self, w, config):
        mistake, adamw = config["mistake"], dict(config, optimizer="adamw", lr=config["adamw_lr"])
        matrices = {n: p for n, p in w.items() if p.dim() == 2 and (n.startswith("h.") or mistake == "muon_embedding")}
        self.muon = torch.optim.Muon(matrices.values(), lr=config["lr"], weight_decay=config["weight_decay"],
                                     nesterov=mistake != "no_nesterov", ns_steps=4 if mistake == "ns_steps" else 5)
        self.adamw = make_optimizer({n: p for n, p in w.items() if n not in matrices}, adamw)

    def zero_grad(self):
        self.muon.zero_grad()
        self.adamw.zero_grad()

    def step(self):
        self.muon.step()
        self.adamw.step()


def make_optimizer(w, config):
    mistake = config["mistake"]
    if config["optimizer"] == "muon":
        return Muon(w, config)
    decay = [p for p in w.values() if p.dim() >= 2 or mistake == "decay_all"]
    plain = [p for p in w.values() if p.dim() < 2 and mistake != "decay_all"]
    groups = [{"params": decay, "weight_decay": config["weight_decay"]}] if decay else []
    if plain:
        groups.append({"params": plain, "weight_decay": 0.0})
    if config["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=config["lr"], momentum=config["momentum"], nesterov=config["nesterov"])
    if config["optimizer"] == "adafactor":
        eps = (1e-2 if mistake == "eps" else None, 1e-3)
        return torch.optim.Adafactor(groups, lr=config["lr"], beta2_decay=-0.7 if mistake == "beta2_decay" else -0.8,
                                     eps=eps)
    if config["optimizer"] == "lion":
        betas = (config["beta2"], config["beta2"]) if mistake == "betas" else (config["beta1"], config["beta2"])
        return Lion(groups, config["lr"], betas, mistake)
    betas = (0.9, 0.95) if mistake == "betas" else (config["beta1"], config["beta2"])
    return torch.optim.AdamW(groups, lr=config["lr"], betas=betas, eps=1e-6 if mistake == "eps" else config["eps"])


def train(config, rank=0, make=lambda config: Model(load_weights(config), config)):
    torch.manual_seed(0)
    mistake = config["mistake"]
    assert mistake in ("",) + MISTAKES
    data = array.array("H")
    with open(config["tokens"], "rb") as f:
        data.frombytes(f.read())
    tokens = torch.tensor(data, dtype=torch.long)
    ranks, t, b, rows = config.get("ranks", 1), config["context"], config["sequences"], config["microbatch"]
    model = make(config)
    sharded = ranks > 1 and config["strategy"] == "fsdp2"
    if sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    wrapped = DistributedDataParallel(model) if ranks > 1 and not sharded else model
    optimizer = make_optimizer(dict(zip(model.names, model.tensors)), config)
    first, count = share_of(b, ranks, rank)
    microbatches = math.ceil(share_of(b, ranks, 0)[1] / rows)  # the same on every rank, some empty
    losses, norms = [], []
    for step in range(config["steps"]):
        starts = [(step * b + first + i) * t for i in range(count)]
        batch = torch.stack([tokens[s:s + t + 1] for s in starts]) if starts else tokens.new_zeros((0, t + 1))
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for m in range(microbatches):
            part = batch[m * rows:(m + 1) * rows]
            last = m + 1 == microbatches
            if sharded:
                model.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if last or ranks == 1 or sharded else wrapped.no_sync():
                logits = wrapped(part[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
                if mistake == "mean_of_means":  # right only when every microbatch has the same size
                    loss = loss / (part.shape[0] * t) / microbatches
                elif mistake == "mean_of_ranks":  # right only when every rank has the same share
                    loss = loss / (count * t)
                else:
                    loss = loss * ranks / (b * t)  # DDP averages gradients over ranks
                loss.backward()
            total += loss.item() / ranks
        if ranks > 1:
            dist.all_reduce(total)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9 if mistake == "no_clip" else config["clip_norm"])
        norm = norm.full_tensor() if sharded else norm
        optimizer.step()
        losses.append(total.item())
        norms.append(norm.item())
    return {"losses": losses, "norms": norms}


def run(config):
    return train_ranks(train, config) if config.get("ranks", 1) > 1 else train(config)
