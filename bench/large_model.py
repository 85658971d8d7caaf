#!/usr/bin/env python3
"""GPT-2 774M with AdamW on CPU ranks of this machine, by fsdp full_shard: three steps of 256 tokens a sequence.

    bazel build //bench:ranks_side && python3 bench/large_model.py
    bazel build //bench:ranks_side && python3 bench/large_model.py --ranks 4 --stages 2 --limit 5 --steps 4

By default two ranks, each with one sequence a step. With --stages or --tensor the ranks are a mesh: those of a stage
and of one tensor coordinate share the parameters, and each of them has one sequence for each stage, in microbatches of
one. Run it alone on the machine. Prints each step's time and loss, and for each rank the peak resident size of the
whole process and the planned bytes of its tensors. fp32 parameters, gradients and AdamW's state alone are 11.5 GiB.
Ends with status 1 if a rank's tensors take more than --limit, as planned or as counted, or the loss does not fall.
"""
import argparse
import json
import os
import sys

from machine import machine
from ranks import OURS, Group

MODEL = {"layers": 36, "heads": 20, "width": 1280, "vocabulary": 50257, "context": 256}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stages", type=int, default=1, help="of a pipeline")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that compute each unit together")
    parser.add_argument("--limit", type=float, help="of a rank's tensors, in GiB; default: none")
    parser.add_argument("--strategy", default="full_shard")
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    if args.ranks % (args.stages * args.tensor):
        parser.error("--stages times --tensor must divide --ranks")
    mesh = {"ranks": args.ranks, "stages": args.stages, "tensor": args.tensor, "strategy": args.strategy}
    flags = [word for key, value in {**MODEL, **mesh, "sequences": args.stages, "microbatch": 1, "threads": 1}.items()
             for word in ("--" + key.replace("_", "-"), str(value))]
    group = Group([args.side] + flags, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS, **os.environ},
                  args.ranks)
    answers = group.ask(args.steps)
    group.end()
    gib = 2.0**30
    losses = answers[0]["losses"]
    for step, times in enumerate(zip(*(a["milliseconds"] for a in answers))):
        print("step %d  %.1f s  loss %.3f" % (step + 1, max(times) / 1e3, losses[step]))
    for rank, answer in enumerate(answers):
        print("rank %d  peak resident %.2f GiB, tensors %.2f GiB, planned %.2f GiB" % (
            rank, answer["peak_bytes"] / gib, answer["tensor_bytes"] / gib, answer["planned_bytes"] / gib))
    print(machine())
    print("in all  peak resident %.2f GiB" % (sum(a["peak_bytes"] for a in answers) / gib))
    most = max(max(a["tensor_bytes"], a["planned_bytes"]) for a in answers) / gib
    if args.limit is not None and most > args.limit:
        sys.exit("a rank's tensors take %.2f GiB, more than --limit %g" % (most, args.limit))
    if args.steps > 1 and not losses[-1] < losses[0]:
        sys.exit("the loss does not fall: %s" % losses)


if __name__ == "__main__":
    main()
