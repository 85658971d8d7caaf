#!/usr/bin/env python3
"""GPT-2 774M with AdamW on two CPU ranks of this machine, by fsdp full_shard: three steps of 2 x 256 tokens.

    bazel build //bench:ranks_side && python3 bench/large_model.py

Run it alone on the machine. Prints each step's time, and for each rank the peak resident size of the whole process and
the planned bytes of its tensors. fp32 parameters, gradients and AdamW's state alone are 11.5 GiB.
"""
import argparse
import json
import os

from machine import machine
from ranks import OURS, Group

MODEL = {"layers": 36, "heads": 20, "width": 1280, "vocabulary": 50257, "context": 256, "sequences": 1}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--strategy", default="full_shard")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    flags = [word for key, value in {**MODEL, "threads": 1, "ranks": args.ranks, "strategy": args.strategy}.items()
             for word in ("--" + key, str(value))]
    group = Group([args.side] + flags, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS, **os.environ},
                  args.ranks)
    answers = group.ask(args.steps)
    group.end()
    gib = 2.0**30
    for step, times in enumerate(zip(*(a["milliseconds"] for a in answers))):
        print("step %d  %.1f s" % (step + 1, max(times) / 1e3))
    for rank, answer in enumerate(answers):
        print("rank %d  peak resident %.2f GiB, tensors %.2f GiB, planned %.2f GiB" % (
            rank, answer["peak_bytes"] / gib, answer["tensor_bytes"] / gib, answer["planned_bytes"] / gib))
    print(machine())
    print("in all  peak resident %.2f GiB" % (sum(a["peak_bytes"] for a in answers) / gib))


if __name__ == "__main__":
    main()
