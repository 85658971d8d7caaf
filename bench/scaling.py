#!/usr/bin/env python3
"""The simulator's step times compared to measured ones: ranks of this machine, over Gloo, one thread each.

    bazel build //bench:ranks_side //bench:calibrate_side //bench:scaling && python3 bench/scaling.py [--json FILE]

A step takes as long as its slowest rank; measured is the smallest of several. The prediction is that of //bench:scaling with
rates measured in the same run, interleaved with the steps, with as many ranks at work at the same time: the model's GEMMs
alone, an addition of long arrays, buckets by each collective, a message of four bytes between pieces of work. More ranks
than cores are therefore modeled by each rank's measured share of the cores and its latency, not by a rule.
"""
import argparse
import json
import math
import subprocess

from machine import machine
from ranks import CASES, OURS, Group

NAMES = {"ddp": "ddp", "zero1": "zero 1", "zero2": "zero 2", "shard_grad_op": "fsdp shard_grad_op",
         "full_shard": "fsdp full_shard", "hybrid": "fsdp hybrid"}


def flags_of(name, keys):
    return [word for key in keys for word in ("--" + key.replace("_", "-"), str(CASES[name][key]))]


SIZES = ("layers", "heads", "width", "vocabulary", "context", "sequences")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS}


def group_of(command, name, ranks):
    return Group(command + flags_of(name, SIZES) + ["--threads", "1", "--ranks", str(ranks)], ENVIRONMENT, ranks)


def rates(answers, ranks):
    """Of the slowest rank."""
    doublings = math.ceil(math.log2(ranks))
    return {"flops": min(a["flops"] for a in answers), "memory_rate": min(a["memory_bytes_per_second"] for a in answers),
            "link_rate": min(a["link_bytes_per_second"] for a in answers),
            "link_seconds": max(a["message_seconds"] for a in answers) / (2 * doublings) if ranks > 1 else 0}


def best(a, b):
    return {key: (min if key == "link_seconds" else max)(a[key], b[key]) for key in a}


def predicted(name, ranks, measured_rates, args):
    words = [word for key, value in measured_rates.items() if value for word in ("--" + key.replace("_", "-"), repr(value))]
    out = subprocess.run([args.predictor, "--hardware", "cpu", "--model", "tiny", "--compute", "fp32", "--json", "--least",
                          str(ranks), "--most", str(ranks), "--ranks-per-node", str(ranks), "--shard-ranks", "2",
                          "--microbatch",
                          str(CASES[name]["sequences"])] + flags_of(name, SIZES) + words,
                         check=True, capture_output=True, text=True).stdout
    return {row["strategy"]: 1e3 * row["step_seconds"] for row in json.loads(out)["rows"]}


def compare(name, ranks, args):
    # On one rank all strategies are the same.
    strategies = [s for s in args.strategies.split(",") if s != "hybrid" or ranks > 2] if ranks > 1 else ["ddp"]
    calibration = group_of([args.calibration], name, ranks)
    groups = {s: group_of([args.side, "--strategy", s], name, ranks) for s in strategies}
    for group in groups.values():
        group.run(3)
    found = rates(calibration.ask(2), ranks)
    least = {s: math.inf for s in groups}
    for _ in range(args.rounds):
        for s, group in groups.items():
            least[s] = min(least[s], group.run(CASES[name]["steps"])["milliseconds"])
            found = best(found, rates(calibration.ask(1), ranks))
    for group in [calibration, *groups.values()]:
        group.end()
    table = predicted(name, ranks, found, args)
    return [{"case": name, "strategy": s, "ranks": ranks, "measured_ms": least[s], "predicted_ms": table[NAMES[s]],
             "ratio": table[NAMES[s]] / least[s], **found} for s in strategies]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--calibration", default="bazel-bin/bench/calibrate_side", help="the built calibrate_side")
    parser.add_argument("--predictor", default="bazel-bin/bench/scaling", help="the built scaling")
    parser.add_argument("--cases", default="tiny,6x384")
    parser.add_argument("--strategies", default=",".join(NAMES))
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4],
                        help="powers of two")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    rows = []
    print(machine())
    print("%-8s %-14s %5s %12s %12s %6s   %s" % ("case", "strategy", "ranks", "measured ms", "predicted ms", "ratio",
                                                "GFLOP/s, GB/s of memory, GB/s and us a hop of links"))
    for name in args.cases.split(","):
        for ranks in args.ranks:
            for row in compare(name, ranks, args):
                rows.append(row)
                print("%-8s %-14s %5d %12.1f %12.1f %6.2f   %.1f, %.1f, %.2f, %.0f" % (
                    *list(row.values())[:6], row["flops"] / 1e9, row["memory_rate"] / 1e9, row["link_rate"] / 1e9,
                    1e6 * row["link_seconds"]), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
