#!/usr/bin/env python3
"""The simulator's step times beside measured ones: ranks of this machine, over Gloo, one thread each.

    bazel build //bench:ranks_side //bench:scaling && python3 bench/scaling.py [--json FILE]

A step takes as long as its slowest rank; measured is the smallest of several. Predicted is what //bench:scaling says
for hardware `cpu`, whose figures were measured on two cores that did nothing else: elsewhere, or beside other work,
they do not hold.
"""
import argparse
import json
import subprocess

from ranks import CASES, OURS, Group

NAMES = {"ddp": "ddp", "zero1": "zero 1", "zero2": "zero 2", "shard_grad_op": "fsdp shard_grad_op",
         "full_shard": "fsdp full_shard"}


def predicted(name, args):
    case = CASES[name]
    flags = [word for key in ("layers", "heads", "width", "vocabulary", "context", "sequences")
             for word in ("--" + key, str(case[key]))]
    most = max(args.ranks)
    out = subprocess.run([args.predictor, "--hardware", "cpu", "--model", "tiny", "--compute", "fp32", "--json", "--most",
                          str(most), "--ranks_per_node", str(most), "--microbatch", str(case["sequences"])] + flags,
                         check=True, capture_output=True, text=True).stdout
    return {(row["strategy"], row["ranks"]): 1e3 * row["step_seconds"] for row in json.loads(out)["rows"]}


def measured(name, strategy, ranks, args):
    case = dict(CASES[name])
    steps = case.pop("steps")
    flags = [word for key, value in {**case, "threads": 1, "ranks": ranks}.items() for word in ("--" + key, str(value))]
    group = Group([args.side, "--strategy", strategy] + flags,
                  {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS}, ranks)
    group.run(3)
    least = min(group.run(steps)["milliseconds"] for _ in range(args.rounds))
    group.end()
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--predictor", default="bazel-bin/bench/scaling", help="the built scaling")
    parser.add_argument("--cases", default="tiny,6x384")
    parser.add_argument("--strategies", default=",".join(NAMES))
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2, 4],
                        help="powers of two")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    rows = []
    print("%-8s %-14s %5s %12s %12s %6s" % ("case", "strategy", "ranks", "measured ms", "predicted ms", "ratio"))
    for name in args.cases.split(","):
        table = predicted(name, args)
        for strategy in args.strategies.split(","):
            for ranks in args.ranks:
                if ranks == 1 and strategy != "ddp":
                    continue  # on one rank all are the same
                row = {"case": name, "strategy": strategy, "ranks": ranks,
                       "measured_ms": measured(name, strategy, ranks, args), "predicted_ms": table[NAMES[strategy], ranks]}
                row["ratio"] = row["predicted_ms"] / row["measured_ms"]
                rows.append(row)
                print("%-8s %-14s %5d %12.1f %12.1f %6.2f" % tuple(row.values()), flush=True)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
