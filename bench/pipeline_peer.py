"""The other side of pipeline.py: one stage of a Llama trained by torch.distributed.pipelining's Schedule1F1B over Gloo.

The layers are those of Hugging Face's transformers; the first stage has the embedding and --cut layers. Fused AdamW, and
gradients clipped to the norm over all stages. Protocol as ranks_side.cc.
"""
import argparse
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


class Stage(nn.Module):
    def __init__(self, a):
        super().__init__()
        config = LlamaConfig(
            num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.key_value_heads,
            hidden_size=a.width, intermediate_size=a.inner, vocab_size=a.vocabulary,
            max_position_embeddings=a.context, rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=False)
        config._attn_implementation = "sdpa"
        first, last = a.rank == 0, a.rank == a.ranks - 1
        self.embedding = nn.Embedding(a.vocabulary, a.width) if first else None
        layers = range(a.cut) if first else range(a.cut, a.layers)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, i) for i in layers)
        self.norm = LlamaRMSNorm(a.width, 1e-5) if last else None
        self.head = nn.Linear(a.width, a.vocabulary, bias=False) if last else None
        self.rotary = LlamaRotaryEmbedding(config)
        self.register_buffer("positions", torch.arange(a.context).unsqueeze(0))

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        positions = self.rotary(x, self.positions)
        for layer in self.layers:
            x = layer(x, position_embeddings=positions, attention_mask=None, position_ids=self.positions)
            x = x[0] if isinstance(x, tuple) else x
        return x if self.head is None else self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    for name in ("layers", "heads", "key_value_heads", "inner", "width", "vocabulary", "context", "sequences",
                 "microbatch", "threads", "ranks", "rank", "cut"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--folder", required=True, help="where the ranks meet")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method="file://%s/store" % a.folder, rank=a.rank, world_size=a.ranks)
    before = status_bytes("VmRSS")
    model = Stage(a)
    stage = PipelineStage(model, a.rank, a.ranks, torch.device("cpu"))
    count = a.sequences // a.microbatch
    schedule = Schedule1F1B(stage, count, loss_fn=lambda y, targets: F.cross_entropy(y.flatten(0, 1), targets.flatten()))
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
         {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}],
        lr=1e-4, betas=(0.9, 0.999), fused=True)
    ids = torch.randint(0, a.vocabulary, (a.sequences, a.context + 1))
    first, last = a.rank == 0, a.rank == a.ranks - 1

    def step():
        optimizer.zero_grad(set_to_none=True)
        losses = []
        schedule.step(*([ids[:, :-1].contiguous()] if first else []),
                      **({"target": ids[:, 1:].contiguous(), "losses": losses} if last else {}))
        gradients = [p.grad for p in model.parameters()]
        total = torch.stack([g.square().sum() for g in gradients]).sum()
        scalars = torch.stack([total, torch.stack(losses).sum().detach() if last else torch.zeros(())])
        dist.all_reduce(scalars)
        scale = torch.clamp(1.0 / (scalars[0].sqrt() + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, scale)
        optimizer.step()
        return scalars[1].item()

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e3)
        print(json.dumps({"milliseconds": times, "memory_bytes": status_bytes("VmHWM") - before}), flush=True)
    dist.destroy_process_group()


main()
