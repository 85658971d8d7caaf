#!/usr/bin/env python3
"""A single rank compared to PyTorch eager and to the lower bound (its GEMMs alone), interleaved in one run.

    bazel build //bench:single_rank_side && python3 bench/single_rank.py [--json FILE]
    python3 bench/single_rank.py --over-fp32 bf16 [--isas native,avx512,avx2]    # our bf16 or fp16 step over our fp32 step

For each case three processes (ours, PyTorch, the GEMMs) live at the same time and take turns, a few steps each, for
several rounds; idle processes wait on a pipe. A time is the smallest of a round's steps; a ratio is taken within
a round, and its median and range over the rounds are shown: the machine's speed drifts, ratios do not.
Memory is the peak resident size less what the process held before its model existed, for both sides.
The PyTorch interpreter is $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).

--over-fp32 needs no PyTorch. Each line names the instruction set that LibTorch was held to and how it computed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from aligned import aligned
from machine import machine, mkl_code_path

CASES = {
    "tiny": {"layers": 4, "heads": 4, "width": 128, "vocabulary": 256, "context": 128, "sequences": 8, "steps": 8},
    "6x384": {"layers": 6, "heads": 6, "width": 384, "vocabulary": 50257, "context": 256, "sequences": 4, "steps": 1},
    "llama-tiny": {"family": "llama", "layers": 4, "heads": 4, "key_value_heads": 2, "width": 128, "inner": 384,
                   "vocabulary": 256, "context": 128, "sequences": 8, "steps": 8},
    "llama-6x384": {"family": "llama", "layers": 6, "heads": 6, "key_value_heads": 2, "width": 384, "inner": 1024,
                    "vocabulary": 49152, "context": 256, "sequences": 4, "steps": 1},
    "llama-lora": {"family": "llama", "layers": 6, "heads": 6, "key_value_heads": 2, "width": 384, "inner": 1024,
                   "vocabulary": 49152, "context": 256, "sequences": 4, "lora": 8, "steps": 1},
    "resnet20": {"family": "resnet", "depth": 20, "image": 32, "sequences": 32, "steps": 2},
    "resnet18": {"family": "resnet", "depth": 18, "image": 32, "sequences": 16, "steps": 1},
}
# What holds LibTorch and oneDNN to fewer instructions than the CPU has (common/instruction_set.h).
ISAS = {
    "native": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}
# The environment that the worker daemon gives to a trainer.
OURS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000", "MKL_CBWR": mkl_code_path()}


class Side:
    """A process that runs steps on request."""

    def __init__(self, command, environment):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})
        self.ready = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("ended early with status %s: %s" % (self.process.wait(), " ".join(self.command)))
        return json.loads(line)

    def run(self, steps):
        self.process.stdin.write("%d\n" % steps)
        self.process.stdin.flush()
        return self.read()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def flags_of(name, threads):
    """A case's number of steps a round, and its flags."""
    case = dict(CASES[name])
    steps = case.pop("steps")
    return steps, [word for key, value in {**case, "threads": threads}.items() for word in ("--" + key.replace("_", "-"), str(value))]


def measure_narrow(name, threads, isa, args):
    steps, flags = flags_of(name, threads)
    environment = {"OMP_NUM_THREADS": str(threads), **OURS, **ISAS[isa]}
    sides = {dtype: Side([args.side, "--role", "engine", "--dtype", dtype] + flags, environment)
             for dtype in ("fp32", args.over_fp32)}
    for side in sides.values():
        side.run(3)
    rounds = [{key: min(side.run(steps)["milliseconds"]) for key, side in sides.items()} for _ in range(args.rounds)]
    last = {key: side.run(1) for key, side in sides.items()}
    for side in sides.values():
        side.end()
    narrow = args.over_fp32
    return {
        "case": name, "threads": threads, "dtype": narrow, "instruction_set": sides[narrow].ready["instruction_set"],
        "path": (sides[narrow].ready["notes"] or ["through fp32 panels"])[0], "rounds": args.rounds,
        "milliseconds": {key: spread([r[key] for r in rounds]) for key in sides},
        "over_fp32": spread([r[narrow] / r["fp32"] for r in rounds]),
        "planned_bytes": last[narrow]["planned_bytes"], "counted_bytes": last[narrow]["counted_bytes"],
    }


def narrow_table(results):
    def row(r):
        ms, ratio = r["milliseconds"], r["over_fp32"]
        path = "native" if "native" in r["path"] else "fp32 panels"
        return [r["case"], r["dtype"], r["instruction_set"], path, str(r["threads"]), "%.1f" % ms["fp32"]["min"],
                "%.1f" % ms[r["dtype"]]["min"], "%.2f" % ratio["min"], "%.2f" % ratio["median"], "%.2f" % ratio["max"],
                "%.1f/%.1f" % (r["planned_bytes"] / 2**20, r["counted_bytes"] / 2**20)]
    head = ["case", "dtype", "instruction set", "GEMMs", "threads", "fp32 ms", "ms", "over fp32 min", "median", "max",
            "MiB planned/counted"]
    return aligned([head] + [row(r) for r in results])


def measure(name, threads, dtype, args):
    case = CASES[name]
    steps, flags = flags_of(name, threads)
    omp = {"OMP_NUM_THREADS": str(threads)}
    peer = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")]
    sides = {
        "ours": Side([args.side, "--role", "engine", "--dtype", dtype] + flags, {**omp, **OURS}),
        "torch": Side(peer + ["--dtype", dtype] + flags, omp),
    }
    if "family" not in case:  # the lower bound is GPT-2's
        sides["gemms"] = Side([args.side, "--role", "gemms", "--dtype", dtype] + flags, {**omp, **OURS})
    if dtype == "bf16" and not sides["ours"].ready["fast_bf16"]:
        for side in sides.values():
            side.end()
        print("bf16: %s has no instructions for it, so PyTorch's would take minutes; see --over-fp32"
              % sides["ours"].ready["instruction_set"], file=sys.stderr)
        return None
    for side in sides.values():
        side.run(3)
    rounds = [{key: side.run(steps) for key, side in sides.items()} for _ in range(args.rounds)]
    for side in sides.values():
        side.end()
    times = {key: [min(r[key]["milliseconds"]) for r in rounds] for key in sides}
    last = rounds[-1]
    tokens = case.get("context", 1) * case["sequences"]  # of resnet: images
    return {
        "case": name, "threads": threads, "dtype": dtype, "rounds": args.rounds, "tokens_per_step": tokens,
        "instruction_set": sides["ours"].ready["instruction_set"],
        "milliseconds": {key: spread(values) for key, values in times.items()},
        "tokens_per_second": {key: tokens / min(values) * 1e3 for key, values in times.items()},
        "speed_over_torch": spread([b / a for a, b in zip(times["ours"], times["torch"])]),
        **(over_gemms(times) if "gemms" in sides else {}),
        "memory_bytes": {key: last[key]["memory_bytes"] for key in ("ours", "torch")},
        "memory_over_torch": last["ours"]["memory_bytes"] / last["torch"]["memory_bytes"],
        "planned_bytes": last["ours"]["planned_bytes"], "counted_bytes": last["ours"]["counted_bytes"],
    }


def over_gemms(times):
    return {
        "time_over_products": spread([a / b for a, b in zip(times["ours"], times["gemms"])]),
        "torch_time_over_products": spread([a / b for a, b in zip(times["torch"], times["gemms"])]),
        "time_over_products_of_minima": min(times["ours"]) / min(times["gemms"]),
    }


def table(results):
    def range_of(r, key):
        return "%.2f (%.2f-%.2f)" % (r[key]["median"], r[key]["min"], r[key]["max"]) if key in r else "-"

    def row(r):
        ms = r["milliseconds"]
        times = ["%.1f" % ms[k]["min"] if k in ms else "-" for k in ("ours", "torch", "gemms")]
        torch_over = r.get("torch_time_over_products")
        return [r["case"], r["instruction_set"], r["dtype"], str(r["threads"])] + times + [
            "%.0f" % r["tokens_per_second"]["ours"],
            range_of(r, "speed_over_torch"),
            range_of(r, "time_over_products"),
            "%.2f" % torch_over["median"] if torch_over else "-",
            "%.1f" % (r["memory_bytes"]["ours"] / 2**20), "%.1f" % (r["memory_bytes"]["torch"] / 2**20),
            "%.2f" % r["memory_over_torch"], "%.1f/%.1f" % (r["planned_bytes"] / 2**20, r["counted_bytes"] / 2**20)]
    head = ["case", "instruction set", "dtype", "threads", "ours ms", "torch ms", "gemms ms", "tokens or images/s", "speed/torch", "time/gemms",
            "torch/gemms", "MiB", "torch MiB", "ratio", "planned/counted"]
    return aligned([head] + [row(r) for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/single_rank_side", help="the built single_rank_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dtypes", default="fp32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write the results there too")
    parser.add_argument("--over-fp32", choices=("bf16", "fp16"), help="our step in it over our fp32 step, without PyTorch")
    parser.add_argument("--isas", default="native,avx2", help="for --over-fp32: of %s" % ", ".join(ISAS))
    args = parser.parse_args()
    cases = [(name, int(threads)) for name in args.cases.split(",") for threads in args.threads.split(",")]
    if args.over_fp32:
        results = []
        for isa in args.isas.split(","):
            for name, threads in cases:
                results.append(measure_narrow(name, threads, isa, args))
                ratio = results[-1]["over_fp32"]
                print("%s %s, %d threads: %.2f" % (isa, name, threads, ratio["median"]), file=sys.stderr, flush=True)
        print(narrow_table(results))
    else:
        results = [measure(name, threads, dtype, args) for dtype in args.dtypes.split(",") for name, threads in cases]
        results = [r for r in results if r is not None]
        print(table(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
