#!/usr/bin/env python3
"""Every strategy on several ranks of this machine, compared to PyTorch's, interleaved in one run.

    bazel build //bench:ranks_side && python3 bench/strategies.py [--json FILE]

Ours: ddp, zero 1 to 3 (whole tensors), fsdp full_shard and shard_grad_op (even cuts). PyTorch's: DistributedDataParallel,
the same with ZeroRedundancyOptimizer, FSDP2's fully_shard of each block and the root. All over Gloo with AdamW and
clipping, one thread a rank; groups of processes take turns, a few steps each, for several rounds, and idle
groups wait on a pipe. A step takes as long as its slowest rank, a time is the smallest of a round's steps; ratios are
taken within a round, with their median and range. Memory is the largest rank's peak resident size less what it held
before its model existed. The PyTorch interpreter is $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os

from aligned import aligned
from machine import machine
from ranks import CASES, OURS, Group, spread

STRATEGIES = ["ddp", "zero1", "zero2", "zero3", "shard_grad_op", "full_shard"]
PEERS = ["ddp", "zero1", "fsdp2", "fsdp2_grad_op"]
# Which of PyTorch's each of ours is compared with.
COMPARED = {"ddp": "ddp", "zero1": "zero1", "zero2": "zero1", "zero3": "fsdp2", "shard_grad_op": "fsdp2_grad_op",
            "full_shard": "fsdp2"}


def measure(name, args):
    case = dict(CASES[name])
    steps = case.pop("steps")
    flags = [word for key, value in {**case, "threads": args.threads, "ranks": args.ranks}.items()
             for word in ("--" + key.replace("_", "-"), str(value))]
    omp = {"OMP_NUM_THREADS": str(args.threads), "GLOO_SOCKET_IFNAME": "lo"}
    peer = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")]
    ours = args.strategies.split(",")
    peers = [p for p in PEERS if p in {COMPARED[s] for s in ours}]
    groups = {("muster", s): Group([args.side, "--strategy", s] + flags, {**omp, **OURS}, args.ranks) for s in ours}
    groups.update({("torch", s): Group(peer + ["--strategy", s] + flags, omp, args.ranks) for s in peers})
    for group in groups.values():
        group.run(3)
    rounds = [{key: group.run(steps) for key, group in groups.items()} for _ in range(args.rounds)]
    for group in groups.values():
        group.end()
    tokens = case["context"] * case["sequences"] * args.ranks
    rows = []
    for key in groups:
        times = [r[key]["milliseconds"] for r in rounds]
        row = {"case": name, "by": key[0], "strategy": key[1], "ranks": args.ranks, "milliseconds": spread(times),
               "steps_per_second": 1e3 / min(times), "tokens_per_second": tokens / min(times) * 1e3,
               "memory_bytes": max(r[key]["memory_bytes"] for r in rounds)}
        if key[0] == "muster":
            other = ("torch", COMPARED[key[1]])
            row["compared_with"] = other[1]
            row["speed_over"] = spread([r[other]["milliseconds"] / r[key]["milliseconds"] for r in rounds])
            row["memory_over"] = row["memory_bytes"] / max(r[other]["memory_bytes"] for r in rounds)
        rows.append(row)
    return rows


def table(rows):
    def cells(r):
        s = r.get("speed_over")
        return [r["case"], r["by"], r["strategy"], "%.1f" % r["milliseconds"]["min"], "%.2f" % r["steps_per_second"],
                "%.0f" % r["tokens_per_second"], "%.1f" % (r["memory_bytes"] / 2**20), r.get("compared_with", ""),
                "%.2f (%.2f-%.2f)" % (s["median"], s["min"], s["max"]) if s else "",
                "%.2f" % r["memory_over"] if s else ""]
    head = ["case", "by", "strategy", "ms", "it/s", "tokens/s", "MiB/rank", "against", "speed", "memory"]
    return aligned([head] + [cells(r) for r in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default="tiny,6x384")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    rows = [row for name in args.cases.split(",") for row in measure(name, args)]
    print(table(rows))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
