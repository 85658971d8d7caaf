#!/usr/bin/env python3
"""A pipeline of two stages on this machine compared to torch.distributed.pipelining, both by 1F1B over the same cut of the
same Llama, whose head is not tied, interleaved in one run.

    bazel build //bench:ranks_side && python3 bench/pipeline.py [--json FILE]

Groups of processes take turns, a few steps each, for several rounds; idle groups wait on a pipe. A step takes as long as
its slowest rank, a time is the smallest of a round's steps; ratios are taken within a round, with their median and range.
Memory is each stage's: peak resident size less what the process held before its model existed, beside the tensors that
were planned and counted. The PyTorch interpreter is $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os

from aligned import aligned
from machine import machine
from ranks import OURS, Group, spread

CASES = {
    "tiny": {"layers": 4, "heads": 4, "key_value_heads": 2, "inner": 352, "width": 128, "vocabulary": 256,
             "context": 128, "sequences": 16, "microbatch": 2, "steps": 8},
    "6x384": {"layers": 6, "heads": 6, "key_value_heads": 2, "inner": 1024, "width": 384, "vocabulary": 256,
              "context": 256, "sequences": 8, "microbatch": 1, "steps": 1},
}


def flags_of(case):
    return [word for key, value in case.items() for word in ("--" + key, str(value))]


def measure(name, args):
    case = {**CASES[name], "threads": args.threads, "ranks": args.stages}
    steps = case.pop("steps")
    omp = {"OMP_NUM_THREADS": str(args.threads), "GLOO_SOCKET_IFNAME": "lo"}
    sockets = ["--sockets"] if args.sockets else []
    ours = Group([args.side, "--family", "llama", "--stages", str(args.stages)] + sockets + flags_of(case),
                 {**omp, **OURS}, args.stages)
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pipeline_peer.py")
    cut = ours.ready[0]["units"] - 1  # without the embedding
    torch = Group([args.python, peer, "--cut", str(cut)] + flags_of(case), omp, args.stages)
    groups = {"ours": ours, "torch": torch}
    for group in groups.values():
        group.run(3)
    rounds = [{key: group.run(steps)["milliseconds"] for key, group in groups.items()} for _ in range(args.rounds)]
    last = {key: group.ask(1) for key, group in groups.items()}
    for group in groups.values():
        group.end()
    return {
        "case": name, "stages": args.stages, "threads": args.threads, "rounds": args.rounds, "layers_of_first_stage": cut,
        "milliseconds": {key: spread([r[key] for r in rounds]) for key in groups},
        "speed_over_torch": spread([r["torch"] / r["ours"] for r in rounds]),
        "memory_bytes": {key: [a["memory_bytes"] for a in last[key]] for key in groups},
        "planned_bytes": [a["planned_bytes"] for a in last["ours"]],
        "counted_bytes": [a["tensor_bytes"] for a in last["ours"]],
    }


def table(results):
    def mib(values):
        return " ".join("%.1f" % (v / 2**20) for v in values)

    def row(r):
        s = r["speed_over_torch"]
        return [r["case"], str(r["layers_of_first_stage"]), "%.1f" % r["milliseconds"]["ours"]["min"],
                "%.1f" % r["milliseconds"]["torch"]["min"], "%.2f (%.2f-%.2f)" % (s["median"], s["min"], s["max"]),
                mib(r["planned_bytes"]), mib(r["counted_bytes"]), mib(r["memory_bytes"]["ours"]),
                mib(r["memory_bytes"]["torch"])]
    head = ["case", "layers of stage 0", "ours ms", "torch ms", "speed/torch", "planned MiB", "counted MiB",
            "resident MiB", "torch MiB"]
    return aligned([head] + [row(r) for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sockets", action="store_true", help="ours by Gloo, as between machines")
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    results = [measure(name, args) for name in args.cases.split(",")]
    print(table(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
