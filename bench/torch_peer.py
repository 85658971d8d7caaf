"""The other side of single_rank.py, ranks.py and gpu.py: the same GPT-2 trained by PyTorch, as its users write it;
the same Llama by Hugging Face's transformers, or torchvision's ResNet with a stem for small images.

Fused AdamW, scaled dot product attention, gradients set to none; torch.compile on request;
several ranks over Gloo, on GPUs over NCCL, by DistributedDataParallel, with
ZeroRedundancyOptimizer too, or by FSDP2's fully_shard of each block and of the root, with its defaults: the root's own
parameters stay gathered from forward to backward. bf16 is autocast, and with FSDP2 its MixedPrecisionPolicy. Gradients are
reduced once a step, after the last microbatch. Protocol as single_rank_side.cc and ranks_side.cc.
"""
import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for y in self.attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(a.vocabulary, a.width), nn.Embedding(a.context, a.width)
        self.blocks = nn.ModuleList(Block(a.width, a.heads) for _ in range(a.layers))
        self.ln_f = nn.LayerNorm(a.width)
        self.head = nn.Linear(a.width, a.vocabulary, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            nn.init.normal_(p, std=0.02) if p.dim() > 1 else None

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1).float(), targets.flatten())


def llama(a):
    """transformers' own implementation, with its default attention (scaled_dot_product_attention)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = LlamaForCausalLM(LlamaConfig(
                num_hidden_layers=a.layers, num_attention_heads=a.heads, num_key_value_heads=a.key_value_heads,
                hidden_size=a.width, intermediate_size=a.inner, vocab_size=a.vocabulary,
                max_position_embeddings=a.context, rms_norm_eps=1e-5, tie_word_embeddings=False, use_cache=False))
            self.blocks = self.model.model.layers

        def forward(self, ids, targets):
            return F.cross_entropy(self.model(ids).logits.flatten(0, 1).float(), targets.flatten())

    return Llama()


def resnet(a):
    """torchvision's, or He et al.'s of depth 6n + 2; written once, in the parity test's peer."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "parity"))
    import resnet_peer

    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = resnet_peer.make_model({"depth": a.depth, "width": 16, "classes": 10, "channels": 3,
                                                 "stem": "cifar"})

        def forward(self, images, labels):
            return F.cross_entropy(self.model(images).float(), labels)

    return Classifier()


def status_bytes(field):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(field + ":"))


def unreduced(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def adapt(model, rank):
    """PEFT's adapters in the transformers model that `model` holds; all else is frozen."""
    import importlib.metadata
    sys.path.insert(0, os.path.join(sys.prefix, "peft"))
    known = importlib.metadata.version  # accelerate asks for torch's, and here torch is a folder without metadata
    importlib.metadata.version = lambda name: torch.__version__ if name == "torch" else known(name)
    from peft import LoraConfig, inject_adapter_in_model
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear", task_type="CAUSAL_LM"), model.model)


def main():
    parser = argparse.ArgumentParser()
    for name in ("sequences", "threads"):
        parser.add_argument("--" + name, type=int, required=True)
    for name in ("layers", "heads", "width", "vocabulary", "context"):
        parser.add_argument("--" + name, type=int, help="of gpt2 and llama")
    for name in ("depth", "image"):
        parser.add_argument("--" + name, type=int, help="of resnet")
    parser.add_argument("--family", default="gpt2", choices=("gpt2", "llama", "resnet"))
    parser.add_argument("--key-value-heads", "--key_value_heads", type=int, help="of llama")
    parser.add_argument("--inner", type=int, help="of llama")
    parser.add_argument("--lora", type=int, default=0, help="rank of PEFT's adapters of all linear layers; 0: none")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--folder", help="where the ranks meet")
    parser.add_argument("--reduce", default="full", choices=("full", "none"))
    parser.add_argument("--hook", choices=("bf16", "powersgd"), help="of ddp: PyTorch's, PowerSGD of rank 4")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: the first GPU that is visible")
    parser.add_argument("--microbatch", type=int, default=0, help="sequences; 0: all")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--strategy", default="ddp", choices=("ddp", "zero1", "fsdp2", "fsdp2_grad_op"))
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    if a.ranks > 1:
        torch.distributed.init_process_group("nccl" if a.device == "cuda" else "gloo", init_method="file://%s/store" % a.folder, rank=a.rank,
                                             world_size=a.ranks)
    before = status_bytes("VmRSS")
    model = {"gpt2": Gpt2, "llama": llama, "resnet": resnet}[a.family](a).to(a.device)
    if a.lora:
        adapt(model, a.lora)
    run = model
    if a.strategy.startswith("fsdp2"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        options = {"mesh": init_device_mesh(a.device, (a.ranks,))}
        if a.strategy == "fsdp2_grad_op":
            options["reshard_after_forward"] = False
        if a.dtype == "bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in [*model.blocks, model]:
            fully_shard(module, **options)
    elif a.ranks > 1:
        # The three sums of PowerSGD's buckets come in another order on each rank, which only NCCL's streams survive: over
        # Gloo it needs one bucket.
        cap = {"bucket_cap_mb": 4000} if a.hook == "powersgd" else {}
        run = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **cap)
        if a.hook == "bf16":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
            # By another name: PyTorch refuses its own, though Gloo sums bf16 as well.
            run.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))
        elif a.hook == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
            run.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        if a.reduce == "none":  # the same step, with buckets, but without communication
            run.register_comm_hook(None, unreduced)
    if a.compile:
        run = torch.compile(run)
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.dim() > 1]
    plain = [p for p in trained if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    options = {"lr": 1e-4, "betas": (0.9, 0.999), "fused": True}
    if a.strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        optimizer = ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True,
                                            **options)
    else:
        optimizer = torch.optim.AdamW(groups, **options)
    if a.family == "resnet":
        batch = (torch.randn(a.sequences, 3, a.image, a.image), torch.randint(0, 10, (a.sequences,)))
    else:
        ids = torch.randint(0, a.vocabulary, (a.sequences, a.context + 1))
        batch = (ids[:, :-1], ids[:, 1:])
    parts = list(zip(*(tensor.to(a.device).split(a.microbatch or a.sequences) for tensor in batch)))

    fsdp2, several = a.strategy.startswith("fsdp2"), a.ranks > 1
    autocast = a.dtype == "bf16" and not fsdp2

    def backward(part):
        with torch.autocast(a.device, torch.bfloat16, enabled=autocast):
            loss = run(*part) * (len(part[0]) / a.sequences)
        loss.backward()
        return loss.detach()

    def step():
        optimizer.zero_grad(set_to_none=True)
        total = 0
        for part in parts:
            last = part is parts[-1]
            if fsdp2:
                model.set_requires_gradient_sync(last)
            with contextlib.nullcontext() if last or fsdp2 or not several else run.no_sync():
                total = total + backward(part)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        times = []
        begin = time.perf_counter()
        for _ in range(int(line)):
            start = time.perf_counter()
            loss = step()
            if a.device == "cpu":
                loss.item()
            times.append((time.perf_counter() - start) * 1e3)
        if a.device == "cuda":  # the host runs ahead, so only the whole round has a time
            loss.item()
            times = [(time.perf_counter() - begin) * 1e3 / len(times)] * len(times)
        memory = torch.cuda.max_memory_allocated() if a.device == "cuda" else status_bytes("VmHWM") - before
        print(json.dumps({"milliseconds": times, "memory_bytes": memory}), flush=True)


main()
