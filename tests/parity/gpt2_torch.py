"""GPT-2 in plain PyTorch, trained from Muster's initial weights on the same tokens, and compared step by step.

    python gpt2_torch.py JOB.json

JOB.json names a shard of Muster's checkpoint of step 0, a token file, the model's and optimizer's numbers, and what
Muster measured in each step. Printed as JSON: for each variant the largest relative difference of loss and of the
gradient norm before clipping. The variant "plain" is the same training; the others each make one mistake, which the
comparison must see. Needs torch and nothing else.
"""

import json
import struct
import sys

import torch
import torch.nn.functional as F


def read_safetensors(path):
    with open(path, "rb") as f:
        (length,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(length))
        buffer = bytearray(f.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "F32", (name, entry)
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(buffer, dtype=torch.float32, count=(end - begin) // 4, offset=begin)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


class Gpt2:
    """Radford et al. 2019; parameters by Hugging Face's names, linear weights stored [in, out]."""

    def __init__(self, weights, layers, heads, gelu):
        self.p = {n: w.clone().requires_grad_() for n, w in weights.items() if not n.startswith("optimizer.")}
        self.layers, self.heads, self.gelu = layers, heads, gelu

    def linear(self, x, name):
        return x @ self.p[name + ".weight"] + self.p[name + ".bias"]

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.p[name + ".weight"], self.p[name + ".bias"], eps=1e-5)

    def attention(self, x, at):
        rows, length, width = x.shape
        q, k, v = (
            t.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.linear(x, at + "c_attn").split(width, dim=2)
        )
        scores = (q @ k.transpose(2, 3)) / (width // self.heads) ** 0.5
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(ahead, float("-inf")).softmax(dim=-1) @ v
        return self.linear(mixed.transpose(1, 2).reshape(rows, length, width), at + "c_proj")

    def loss_sum(self, tokens):
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.p["wte.weight"][inputs] + self.p["wpe.weight"][: inputs.shape[1]]
        for i in range(self.layers):
            x = x + self.attention(self.norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.")
            hidden = self.linear(self.norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
            x = x + self.linear(F.gelu(hidden, approximate=self.gelu), f"h.{i}.mlp.c_proj")
        logits = self.norm(x, "ln_f") @ self.p["wte.weight"].T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def make_optimizer(model, job, variant):
    o = job["optimizer"]
    everything = list(model.p.values())
    decayed = everything if variant == "decay_everything" else [p for p in everything if p.dim() >= 2]
    rest = [p for p in everything if all(p is not d for d in decayed)]
    groups = [{"params": decayed, "weight_decay": o["weight_decay"]}, {"params": rest, "weight_decay": 0.0}]
    groups = [g for g in groups if g["params"]]
    if o["kind"] == "sgd":
        momentum = 0.8 if variant == "wrong_momentum" else o["momentum"]
        return torch.optim.SGD(groups, lr=o["lr"], momentum=momentum, nesterov=o["nesterov"])
    betas = (o["beta1"], o["beta2"] - 0.01) if variant == "wrong_betas" else (o["beta1"], o["beta2"])
    eps = 1e-6 if variant == "wrong_eps" else o["eps"]
    return torch.optim.AdamW(groups, lr=o["lr"], betas=betas, eps=eps)


def train(job, weights, tokens, variant):
    """Losses and unclipped gradient norms of each step, by the stated order: sample k is tokens[k T .. k T + T]."""
    model = Gpt2(weights, job["layers"], job["heads"], "none" if variant == "erf_gelu" else "tanh")
    optimizer = make_optimizer(model, job, variant)
    context, sequences, microbatch = job["context"], job["sequences"], job["microbatch"]
    clip = 0 if variant == "no_clipping" else job["optimizer"]["clip_norm"]
    windows = (len(tokens) - 1) // context
    losses, norms = [], []
    for step in range(job["steps"]):
        rows = []
        for k in range(step * sequences, (step + 1) * sequences):
            begin = k % windows * context
            rows.append(tokens[begin : begin + context + 1])
        batch = torch.stack(rows)
        targets = sequences * context
        if variant == "no_division_by_microbatches":
            targets = microbatch * context
        loss = 0.0
        for part in batch.split(microbatch):
            part_loss = model.loss_sum(part) / targets
            part_loss.backward()
            loss += part_loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.p.values(), clip if clip > 0 else float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        norms.append(norm.item())
    return losses, norms


def largest_difference(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    torch.set_num_threads(1)
    weights = read_safetensors(job["weights"])
    with open(job["tokens"], "rb") as f:
        data = f.read()
    tokens = torch.tensor(struct.unpack(f"<{len(data) // 2}H", data), dtype=torch.long)
    result = {"torch": torch.__version__, "variants": {}}
    for variant in job["variants"]:
        losses, norms = train(job, weights, tokens, variant)
        result["variants"][variant] = {
            "loss": largest_difference(job["losses"], losses),
            "norm": largest_difference(job["norms"], norms),
            "last_loss": losses[-1],
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
