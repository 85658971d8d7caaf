"""The other side of mesh.py: the same Llama trained on several ranks over Gloo by PyTorch, as its users write it.

Pipelines by torch.distributed.pipelining's Schedule1F1B, where the first stage has the embedding and --cut layers. Tensor
parallelism by parallelize_module with the plan of PyTorch's tutorial: q, k, v, gate and up by columns, o and down by rows,
embedding and head by the vocabulary, loss_parallel; with --sequence-parallel norms and residuals on a part of the tokens.

The layers are those of Hugging Face's transformers, or with --norm torch their norms are torch.nn.RMSNorm. Fused AdamW, and
gradients clipped to the norm over all ranks. Weights and tokens are read from the file of ours. Protocol as ranks_side.cc.
"""
import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from safetensors import safe_open
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


class Stage(nn.Module):
    """Some layers of a Llama, or all, with the names of transformers."""

    def __init__(self, a, layers, first, last):
        super().__init__()
        config = LlamaConfig(
            num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.key_value_heads,
            hidden_size=a.width, intermediate_size=a.inner, vocab_size=a.vocabulary,
            max_position_embeddings=a.context, rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=False)
        config._attn_implementation = "sdpa"
        self.embed_tokens = nn.Embedding(a.vocabulary, a.width) if first else None
        self.layers = nn.ModuleDict({str(i): LlamaDecoderLayer(config, i) for i in layers})
        self.norm = LlamaRMSNorm(a.width, 1e-5) if last else None
        self.lm_head = nn.Linear(a.width, a.vocabulary, bias=False) if last else None
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("positions", torch.arange(a.context).unsqueeze(0), persistent=False)
        if a.norm == "torch":
            for layer in self.layers.values():
                layer.input_layernorm, layer.post_attention_layernorm = nn.RMSNorm(a.width, 1e-5), nn.RMSNorm(a.width, 1e-5)
            self.norm = nn.RMSNorm(a.width, 1e-5) if last else None

    def load(self, path):
        with safe_open(path, "pt") as f, torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(f.get_tensor(name if name.startswith("lm_head") else "model." + name))
            return f.get_tensor("tokens").long()

    def forward(self, x):
        if self.embed_tokens is not None:
            x = self.embed_tokens(x)
        positions = self.rotary(x, self.positions)
        for layer in self.layers.values():
            x = layer(x, position_embeddings=positions, attention_mask=None, position_ids=self.positions)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.lm_head is None else self.lm_head(self.norm(x))


def optimizer_of(parameters):
    return torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}],
        lr=1e-4, betas=(0.9, 0.999), fused=True)


def squares(gradients):
    return torch.stack(torch._foreach_norm(gradients)).square().sum() if gradients else torch.zeros(())


def scale_to(total, gradients):
    torch._foreach_mul_(gradients, torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0))


def pipeline(a):
    """A function that takes a step of the rank's stage and returns its loss."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    first, last = a.rank == 0, a.rank == a.ranks - 1
    model = Stage(a, range(a.cut) if first else range(a.cut, a.layers), first, last)
    ids = model.load(a.model).view(a.sequences, a.context + 1)
    count = a.sequences // a.microbatch
    schedule = Schedule1F1B(PipelineStage(model, a.rank, a.ranks, torch.device("cpu")), count,
                            loss_fn=lambda y, targets: F.cross_entropy(y.flatten(0, 1), targets.flatten()))
    optimizer = optimizer_of(list(model.parameters()))

    def step():
        optimizer.zero_grad(set_to_none=True)
        losses = []
        schedule.step(*([ids[:, :-1].contiguous()] if first else []),
                      **({"target": ids[:, 1:].contiguous(), "losses": losses} if last else {}))
        gradients = [p.grad for p in model.parameters()]
        loss = torch.stack(losses).mean().detach() if last else torch.zeros(())
        scalars = torch.stack([squares(gradients), loss])
        dist.all_reduce(scalars)
        scale_to(scalars[0], gradients)
        optimizer.step()
        return scalars[1].item()

    return step


def divide(model, mesh, sequence_parallel):
    tokens = Shard(1) if sequence_parallel else Replicate()
    part = {
        "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=tokens),
        "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=tokens),
    }
    ends = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=tokens),
        "lm_head": ColwiseParallel(input_layouts=tokens, output_layouts=Shard(-1), use_local_output=False),
    }
    if sequence_parallel:
        part["input_layernorm"] = part["post_attention_layernorm"] = ends["norm"] = SequenceParallel()
        part["self_attn"] = PrepareModuleInput(input_kwarg_layouts={"hidden_states": Shard(1)},
                                               desired_input_kwarg_layouts={"hidden_states": Replicate()})
        part["mlp"] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for layer in model.layers.values():
        parallelize_module(layer, mesh, part)
    parallelize_module(model, mesh, ends)


def tensor(a):
    """A function that takes a step of the rank's share of the model and returns its loss."""
    from torch.distributed.device_mesh import init_device_mesh

    model = Stage(a, range(a.layers), True, True)
    ids = model.load(a.model).view(a.sequences, a.context + 1)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
    divide(model, init_device_mesh("cpu", (a.ranks,)), a.sequence_parallel)
    divided = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]  # norms without sequence parallelism
    optimizers = [optimizer_of(part) for part in (divided, whole) if part]

    def clip():
        parts, same = [], [p.grad for p in whole]
        for p in divided:  # a gradient may be a sum that is still due
            g = p.grad.redistribute(placements=p.placements) if p.grad.placements != p.placements else p.grad
            p.grad = g
            (parts if p.placements[0].is_shard() else same).append(g.to_local())
        total = squares(parts)
        dist.all_reduce(total)
        scale_to(total + squares(same), parts + same)

    def step():
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with loss_parallel():
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
            loss.backward()
        clip()
        for optimizer in optimizers:
            optimizer.step()
        return loss.full_tensor().item() if isinstance(loss, DTensor) else loss.item()

    return step


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "heads", "key_value_heads", "inner", "width", "vocabulary", "context", "sequences", "threads",
                 "ranks", "rank"):
        parser.add_argument(*dict.fromkeys(("--" + name.replace("_", "-"), "--" + name)), type=int, required=True)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--cut", type=int, help="layers of the first stage")
    parser.add_argument("--microbatch", type=int, help="of a pipeline")
    parser.add_argument("--tensor", type=int, default=1)
    parser.add_argument("--sequence-parallel", "--sequence_parallel", action="store_true")
    parser.add_argument("--norm", default="transformers", choices=("transformers", "torch"))
    parser.add_argument("--model", required=True, help="file of weights and tokens")
    parser.add_argument("--folder", required=True, help="where the ranks meet")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    dist.init_process_group("gloo", init_method="file://%s/store" % a.folder, rank=a.rank, world_size=a.ranks)
    before, code = status_bytes("VmRSS"), status_bytes("RssFile")
    step = pipeline(a) if a.stages > 1 else tensor(a)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
        f.write("5")  # the peak begins here: reading the whole model does not count
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        times, losses = [], []
        for _ in range(int(line)):
            start = time.perf_counter()
            losses.append(step())
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps({"milliseconds": times, "losses": losses, "memory_bytes": status_bytes("VmHWM") - before,
                          "code_bytes": status_bytes("RssFile") - code}), flush=True)
    dist.destroy_process_group()


main()
