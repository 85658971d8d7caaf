#!/usr/bin/env python3
"""How long training stalls for an asynchronous checkpoint, compared to PyTorch's DCP async_save of the same tensors on
the same disk, interleaved in one run.

    bazel build //bench:checkpoint_side && nice -n -15 python3 bench/checkpoint.py [--json FILE]

Each round is one job of ours (a trainer of GPT-2 with AdamW that takes small steps, `stall_seconds` of its records) and
one process of PyTorch's that holds as many fp32 tensors of the same shapes. Both have one thread, and neither begins a
checkpoint before the previous one is written. The first checkpoint of each process, which uses cold memory, is shown
separately; ratios are taken between the medians of a round. The PyTorch interpreter is
$MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

from machine import machine

SIDE = "bazel-bin/bench/checkpoint_side"


def run(command, cwd=None, env=None):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=cwd, env={**os.environ, **(env or {})})
    if done.returncode != 0:
        sys.exit("failed: " + " ".join(command))
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def shapes_of(path):
    """Names and shapes of a shard's tensors, from its header."""
    step = sorted(name for name in os.listdir(path) if name.startswith("step-"))[-1]
    with open(os.path.join(path, step, "shard-00000.safetensors"), "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--checkpoints", type=int, default=4, help="of each process")
    parser.add_argument("--every", type=int, default=16, help="our steps between two: longer than one is written")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=2.0, help="PyTorch's computing between two saves")
    parser.add_argument("--folder", help="on the disk to measure; default: the one of temporary files")
    parser.add_argument("--side", default=SIDE)
    parser.add_argument("--runfiles", help="folder in which the side finds its trainer")
    parser.add_argument("--json")
    a = parser.parse_args()
    peer = os.environ.get("MUSTER_PEER_PYTHON", os.path.expanduser("~/.cache/muster/peer/bin/python"))
    here = os.path.dirname(os.path.abspath(__file__))
    side = os.path.abspath(a.side)
    runfiles = a.runfiles or side + ".runfiles/muster"
    rounds = []
    with tempfile.TemporaryDirectory(dir=a.folder) as folder:
        for number in range(a.rounds):
            ours_path = os.path.join(folder, "ours-%d" % number)
            ours = run([side, "--path", ours_path, "--layers", str(a.layers), "--width", str(a.width),
                        "--checkpoints", str(a.checkpoints), "--every", str(a.every)], cwd=runfiles)
            shapes = os.path.join(folder, "shapes.json")
            with open(shapes, "w") as file:
                json.dump(shapes_of(ours_path), file)
            subprocess.run(["rm", "-rf", ours_path], check=True)
            theirs = run([peer, os.path.join(here, "checkpoint_peer.py"), "--path",
                          os.path.join(folder, "theirs-%d" % number), "--shapes", shapes, "--checkpoints",
                          str(a.checkpoints), "--seconds", str(a.seconds)])
            rounds.append({"ours": ours, "theirs": theirs})
            for name, lines in rounds[-1].items():
                print("round %d, %-6s stall ms: %s; written in s: %s; %.0f MiB" % (
                    number, name, " ".join("%.0f" % (1e3 * line["stall_seconds"]) for line in lines),
                    " ".join("%.2f" % line["write_seconds"] for line in lines), lines[0]["bytes"] / 2**20), flush=True)

    def ratio(pick):
        return [pick(r["ours"]) / pick(r["theirs"]) for r in rounds]

    later = ratio(lambda lines: statistics.median(line["stall_seconds"] for line in lines[1:]))
    first = ratio(lambda lines: lines[0]["stall_seconds"])
    for name, values in (("first", first), ("later", later)):
        print(machine())
        print("stall, ours / PyTorch's, %s checkpoints: median %.3f, least %.3f, most %.3f" %
              (name, statistics.median(values), min(values), max(values)))
    if a.json:
        with open(a.json, "w") as file:
            json.dump({"rounds": rounds, "first": first, "later": later}, file, indent=1)


if __name__ == "__main__":
    main()
