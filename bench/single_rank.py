#!/usr/bin/env python3
"""A single rank compared to PyTorch eager and to the lower bound (its GEMMs alone), interleaved in one run.

    bazel build //bench:single_rank_side && python3 bench/single_rank.py [--json FILE]

For each case three processes (ours, PyTorch, the GEMMs) live at the same time and take turns, a few steps each, for
several rounds; idle processes wait on a pipe. A time is the smallest of a round's steps; a ratio is taken within
a round, and its median and range over the rounds are shown: the machine's speed drifts, ratios do not.
Memory is the peak resident size less what the process held before its model existed, for both sides.
The PyTorch interpreter is $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from aligned import aligned

CASES = {
    "tiny": {"layers": 4, "heads": 4, "width": 128, "vocabulary": 256, "context": 128, "sequences": 8, "steps": 8},
    "6x384": {"layers": 6, "heads": 6, "width": 384, "vocabulary": 50257, "context": 256, "sequences": 4, "steps": 1},
}
# The environment that the worker daemon gives to a trainer.
OURS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000", "MKL_CBWR": "AVX2"}


class Side:
    """A process that runs steps on request."""

    def __init__(self, command, environment):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, **environment})
        self.read()

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


def measure(name, threads, dtype, args):
    case = dict(CASES[name])
    steps = case.pop("steps")
    flags = [word for key, value in {**case, "threads": threads}.items() for word in ("--" + key, str(value))]
    omp = {"OMP_NUM_THREADS": str(threads)}
    peer = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")]
    sides = {
        "ours": Side([args.side, "--role", "engine", "--dtype", dtype] + flags, {**omp, **OURS}),
        "torch": Side(peer + ["--dtype", dtype] + flags, omp),
        "gemms": Side([args.side, "--role", "gemms", "--dtype", dtype] + flags, {**omp, **OURS}),
    }
    for side in sides.values():
        side.run(3)
    rounds = [{key: side.run(steps) for key, side in sides.items()} for _ in range(args.rounds)]
    for side in sides.values():
        side.end()
    times = {key: [min(r[key]["milliseconds"]) for r in rounds] for key in sides}
    last = rounds[-1]
    tokens = case["context"] * case["sequences"]
    return {
        "case": name, "threads": threads, "dtype": dtype, "rounds": args.rounds, "tokens_per_step": tokens,
        "milliseconds": {key: spread(values) for key, values in times.items()},
        "tokens_per_second": {key: tokens / min(values) * 1e3 for key, values in times.items()},
        "speed_over_torch": spread([b / a for a, b in zip(times["ours"], times["torch"])]),
        "time_over_products": spread([a / b for a, b in zip(times["ours"], times["gemms"])]),
        "torch_time_over_products": spread([a / b for a, b in zip(times["torch"], times["gemms"])]),
        "time_over_products_of_minima": min(times["ours"]) / min(times["gemms"]),
        "memory_bytes": {key: last[key]["memory_bytes"] for key in ("ours", "torch")},
        "memory_over_torch": last["ours"]["memory_bytes"] / last["torch"]["memory_bytes"],
        "planned_bytes": last["ours"]["planned_bytes"], "counted_bytes": last["ours"]["counted_bytes"],
    }


def has_bf16():
    with open("/proc/cpuinfo", encoding="ascii") as f:
        return "avx512_bf16" in f.read()


def table(results):
    def row(r):
        ms, over, floor = r["milliseconds"], r["speed_over_torch"], r["time_over_products"]
        return [r["case"], r["dtype"], str(r["threads"])] + ["%.1f" % ms[k]["min"] for k in ("ours", "torch", "gemms")] + [
            "%.0f" % r["tokens_per_second"]["ours"],
            "%.2f (%.2f-%.2f)" % (over["median"], over["min"], over["max"]),
            "%.2f (%.2f-%.2f)" % (floor["median"], floor["min"], floor["max"]),
            "%.2f" % r["torch_time_over_products"]["median"],
            "%.1f" % (r["memory_bytes"]["ours"] / 2**20), "%.1f" % (r["memory_bytes"]["torch"] / 2**20),
            "%.2f" % r["memory_over_torch"], "%.1f/%.1f" % (r["planned_bytes"] / 2**20, r["counted_bytes"] / 2**20)]
    head = ["case", "dtype", "threads", "ours ms", "torch ms", "gemms ms", "tokens/s", "speed/torch", "time/gemms",
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
    args = parser.parse_args()
    results = []
    for dtype in args.dtypes.split(","):
        if dtype == "bf16" and not has_bf16():
            print("bf16: this CPU lacks avx512_bf16, left out", file=sys.stderr)
            continue
        for name in args.cases.split(","):
            for threads in args.threads.split(","):
                results.append(measure(name, int(threads), dtype, args))
    print(table(results))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
