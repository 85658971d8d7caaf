#!/usr/bin/env python3
"""Training on the GPUs of this machine compared to PyTorch on the same GPUs: eager, torch.compile and FSDP2.

    bazel build --config=cuda //bench:ranks_side && python3 bench/gpu.py --python PYTHON_WITH_CUDA_TORCH [--json FILE]

GPT-2 124M in bf16 (PyTorch by autocast), AdamW, clipping; on one GPU, then by DDP and FSDP on all of them. The sides take
turns, a few steps each, for several rounds; a time is a round's over its steps, since hosts run ahead of GPUs; ratios are
taken within a round, with their median and range. Memory is what tensors took at most (PyTorch: max_memory_allocated); planned is what `muster plan`
says. Each process sees one GPU. `--device cpu --case tiny --ranks 2` tries the script itself on a machine without one.

--graphs compares ours without and with `cuda_graphs: true` instead, whose losses must be equal up to rounding (our kernels give
equal bits; LibTorch's AdamW takes the learning rate in fp32 with graphs): a difference ends the script with status 1. `bazel run //bench:launches` counts what a step launches with and without, on any machine.
"""
import argparse
import json
import os
import subprocess
import sys

from aligned import aligned
from machine import machine
from ranks import OURS, Group, spread

CASES = {
    # All sides are on the GPU at once: 32 sequences, so that they fit into 80 GB beside eager PyTorch's fp32 logits.
    "124m": {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "context": 1024, "sequences": 32},
    "1558m": {"layers": 48, "heads": 25, "width": 1600, "vocabulary": 50257, "context": 1024, "sequences": 16},
    "tiny": {"layers": 4, "heads": 4, "width": 128, "vocabulary": 256, "context": 128, "sequences": 8},
}
LOSS_LIMIT = 1e-6  # relative, between steps without and with CUDA graphs
# Ours, and PyTorch's to compare it with: flags of torch_peer.py.
ONE_GPU = [("single", {"eager": [], "torch.compile": ["--compile"]})]
ALL_GPUS = [("ddp", {"DDP": ["--strategy", "ddp"]}), ("full_shard", {"FSDP2": ["--strategy", "fsdp2"]}),
            ("shard_grad_op", {"FSDP2": ["--strategy", "fsdp2_grad_op"]})]


def gpus(args):
    """Names of the GPUs, one for each rank."""
    try:
        text = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"],
                              check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit("gpu.py: nvidia-smi does not run (%s): is there a GPU, and its driver?" % error)
    found = text.strip().splitlines()
    if args.graphs:
        return found
    check = "import torch; assert torch.cuda.is_available(), 'this torch sees no GPU'; print(torch.__version__)"
    if subprocess.run([args.python, "-c", check]).returncode != 0:
        sys.exit("gpu.py: %s has no torch with CUDA; name one that has by --python" % args.python)
    return found


def ranks_of(command, ranks, args):
    """A process a rank, each with a GPU of its own."""
    if args.device == "cpu":
        return Group(command, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS}, ranks)
    # As the worker daemon sets it: cuBLAS needs it in deterministic mode.
    return Group(command, {**OURS, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, ranks, [{"CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(ranks)])


def shape_of(args):
    shape = dict(CASES[args.case])
    if args.sequences:
        shape["sequences"] = args.sequences
    return shape


def shape_flags(ranks, args):
    return [word for key, value in {**shape_of(args), "threads": 1, "ranks": ranks, "dtype": args.dtype,
                                    "device": args.device, "microbatch": args.microbatch}.items()
            for word in ("--" + key.replace("_", "-"), str(value))]


def compare(strategy, peers, ranks, args):
    shape, flags = shape_of(args), shape_flags(ranks, args)
    here = os.path.dirname(os.path.abspath(__file__))
    groups = {"ours": ranks_of([args.side, "--strategy", strategy] + flags, ranks, args)}
    for name, words in peers.items():
        groups[name] = ranks_of([args.python, os.path.join(here, "torch_peer.py")] + words + flags, ranks, args)
    for group in groups.values():
        group.run(args.warm_up)
    rounds = [{name: group.run(args.steps) for name, group in groups.items()} for _ in range(args.rounds)]
    answer = groups["ours"].ask(1)[0]
    for group in groups.values():
        group.end()
    tokens = shape["sequences"] * shape["context"] * ranks
    times = {name: [r[name]["milliseconds"] for r in rounds] for name in groups}
    row = {"strategy": strategy, "ranks": ranks, "tokens_per_second": {n: tokens / min(t) * 1e3 for n, t in times.items()},
           "milliseconds": {n: spread(t) for n, t in times.items()},
           "speed_over": {n: spread([p / o for o, p in zip(times["ours"], times[n])]) for n in peers},
           "memory_bytes": {"ours": answer["tensor_bytes"], **{n: rounds[-1][n]["memory_bytes"] for n in peers}},
           "planned_bytes": answer["planned_bytes"]}
    return row


def compare_graphs(strategy, ranks, args):
    flags = shape_flags(ranks, args)
    groups = {name: ranks_of([args.side, "--strategy", strategy, "--graphs", graphs] + flags, ranks, args)
              for name, graphs in (("without", "off"), ("with", "on"))}
    losses = {name: group.run(args.warm_up)["losses"] for name, group in groups.items()}
    rounds = [{name: group.run(args.steps) for name, group in groups.items()} for _ in range(args.rounds)]
    answers = {name: group.ask(1)[0] for name, group in groups.items()}
    for group in groups.values():
        group.end()
    for name in groups:
        losses[name] += [loss for r in rounds for loss in r[name]["losses"]] + answers[name]["losses"]
    times = {name: [r[name]["milliseconds"] for r in rounds] for name in groups}
    return {"strategy": strategy, "ranks": ranks, "milliseconds": {n: spread(t) for n, t in times.items()},
            "speed_over_without": spread([a / b for a, b in zip(times["without"], times["with"])]),
            "memory_bytes": {n: answers[n]["tensor_bytes"] for n in groups}, "planned_bytes": answers["with"]["planned_bytes"],
            "losses": losses, "loss_difference": max(abs(a - b) / b for a, b in zip(losses["with"], losses["without"]))}


def graphs_table(rows):
    lines = [["strategy", "ranks", "ms without graphs", "ms with", "speed", "GiB planned", "GiB without", "GiB with", "losses"]]
    for row in rows:
        ratio = row["speed_over_without"]
        lines.append([row["strategy"], str(row["ranks"]), "%.1f" % row["milliseconds"]["without"]["min"],
                      "%.1f" % row["milliseconds"]["with"]["min"],
                      "%.2f (%.2f-%.2f)" % (ratio["median"], ratio["min"], ratio["max"]),
                      "%.2f" % (row["planned_bytes"] / 2**30), "%.2f" % (row["memory_bytes"]["without"] / 2**30),
                      "%.2f" % (row["memory_bytes"]["with"] / 2**30), "equal" if row["loss_difference"] == 0 else "differ by %.0e" % row["loss_difference"]])
    return aligned(lines)


def table(rows):
    lines = [["strategy", "ranks", "ours ms", "tokens/s", "GiB planned", "GiB taken", "against", "its ms", "its GiB",
              "speed over its"]]
    for row in rows:
        for peer, ratio in row["speed_over"].items():
            lines.append([row["strategy"], str(row["ranks"]), "%.1f" % row["milliseconds"]["ours"]["min"],
                          "%.0f" % row["tokens_per_second"]["ours"], "%.2f" % (row["planned_bytes"] / 2**30),
                          "%.2f" % (row["memory_bytes"]["ours"] / 2**30), peer, "%.1f" % row["milliseconds"][peer]["min"],
                          "%.2f" % (row["memory_bytes"][peer] / 2**30),
                          "%.2f (%.2f-%.2f)" % (ratio["median"], ratio["min"], ratio["max"])])
    return aligned(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON", "python3"), help="with torch")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--case", default="124m", choices=CASES)
    parser.add_argument("--dtype", default="bf16", choices=("fp32", "bf16"))
    parser.add_argument("--sequences", type=int, default=0, help="a rank and step; 0: the case's")
    parser.add_argument("--microbatch", type=int, default=0, help="sequences; 0: all at once")
    parser.add_argument("--ranks", type=int, default=0, help="0: all GPUs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="a round")
    parser.add_argument("--warm-up", "--warm_up", type=int, default=5, help="steps before the first round")
    parser.add_argument("--graphs", action="store_true", help="without and with CUDA graphs; no PyTorch")
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    found = gpus(args) if args.device == "cuda" else []
    ranks = args.ranks or len(found) or 1
    if args.device == "cuda" and ranks > len(found):
        sys.exit("gpu.py: %d ranks, and %d GPUs" % (ranks, len(found)))
    if args.graphs:
        rows = [compare_graphs(strategy, 1, args) for strategy, _ in ONE_GPU]
        rows += [compare_graphs(strategy, ranks, args) for strategy, _ in ALL_GPUS if ranks > 1]
    else:
        rows = [compare(strategy, peers, 1, args) for strategy, peers in ONE_GPU]
        rows += [compare(strategy, peers, ranks, args) for strategy, peers in ALL_GPUS if ranks > 1]
    print(graphs_table(rows) if args.graphs else table(rows))
    print("GPT-2 %s, %s, on %s" % (args.case, args.dtype, "; ".join(found[:ranks]) or machine()))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"gpus": found, "rows": rows}, file, indent=1)
    if any(row.get("loss_difference", 0) > LOSS_LIMIT for row in rows):
        sys.exit("gpu.py: losses with CUDA graphs differ from those without")


if __name__ == "__main__":
    main()
