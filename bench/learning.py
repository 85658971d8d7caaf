#!/usr/bin/env python3
"""How a model learns while its gradients travel compressed, beside exact sums: the held-out loss over the steps.

    tools/install.sh /tmp/bin && python3 bench/learning.py --bin /tmp/bin --text TEXT... [--images FOLDER] [--steps 600]

Jobs of four ranks on two nodes of this machine, run one after the other by the service, with the same data and seed: GPT-2 of 4
layers of width 128 on the bytes of the text files, by AdamW; with --images, a ResNet of depth 20 on Fashion-MNIST (the folder of
Debian's package dataset-fashion-mnist), by SGD with momentum. The last tenth of the text, and the test images, are held out.
  diloco    two replicas of two ranks that exchange every twelfth of the steps, where the loss is measured; of replica 0
  steps to  after which the held-out loss is at most the exact run's last one, times 1.02
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

from aligned import aligned
from machine import machine

KINDS = {
    "exact": "{}",
    "top_k": "{compression: {kind: top_k, ratio: 0.01}}",
    "top_k, two levels": "{hierarchy: always, compression: {kind: top_k, ratio: 0.01}}",
    "top_k, warm-up": "{compression: {kind: top_k, ratio: 0.01, warm_up_steps: %(warm_up)d}}",
    "power_sgd": "{compression: {kind: power_sgd, rank: 4}}",
    "int8": "{compression: {kind: int8}}",
    "diloco": "{}",
    "diloco, int4": "{}",
    "diloco, int4, fragments": "{}",
}
# Two replicas of two ranks, each with half of the sequences: together the others' batch.
SYNC = {
    "diloco": "{every: %(local)d}",
    "diloco, int4": "{every: %(local)d, values: int4}",
    "diloco, int4, fragments": "{every: %(local)d, values: int4, fragments: 2, delay: 2}",
}
GPT2 = """
model: {family: gpt2, layers: 4, heads: 4, width: 128, vocabulary: 256, context: 128}
data: {tokens: %(train)s, validation: %(held_out)s}
batch: {sequences: %(text_batch)d, microbatch: 8}
optimizer: {kind: adamw, lr: %(lr)g, lr_schedule: {kind: cosine, warmup_steps: %(warm_up)d}}
"""
RESNET = """
model: {family: resnet, depth: 20, width: 8, image: 32, classes: 10}
data: {images: %(train)s, validation: %(held_out)s}
batch: {sequences: %(image_batch)d, microbatch: 32}
optimizer: {kind: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0, lr_schedule: {kind: cosine, warmup_steps: %(warm_up)d}}
"""
COMMON = """apiVersion: muster/v1
kind: Job
name: learning
resources: {ranks: %(ranks)d}
strategy: {kind: ddp}
steps: %(steps)d
validation: {every_steps: %(every)d, sequences: %(validated)d}
communication: %(communication)s
"""


class Service:
    def __init__(self, folder, programs):
        self.program = os.path.join(programs, "muster")
        self.environment = {**os.environ, "MUSTER_RUNTIME_DIR": folder, "MUSTER_BIN_DIR": programs, "HOME": folder}
        self.run("local", "up", "--nodes", "2", "--slots", "2")

    def run(self, *arguments):
        done = subprocess.run([self.program, *arguments], env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit("learning.py: %s ended with status %d: %s" % (" ".join(arguments), done.returncode, done.stderr))
        return done.stdout

    def losses(self, text, folder):
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        self.run("submit", "-f", path)
        points = json.loads(self.run("metrics", "@last", "-o", "json"))
        return {p["step"]: p["validation_loss"] for p in points if "validation_loss" in p}


def curves(service, folder, model, names, args):
    values = {**names, "lr": args.lr, "steps": args.steps, "every": max(1, args.steps // 12), "warm_up": max(1, args.steps // 12),
              "validated": args.validated}
    seen = {}
    for kind in args.kinds.split(";"):
        values["communication"] = KINDS[kind] % values
        share = 2 if kind in SYNC else 1
        values.update(ranks=4 // share, text_batch=32 // share, image_batch=128 // share, local=values["every"])
        sync = "sync: %s\n" % (SYNC[kind] % values) if kind in SYNC else ""
        seen[kind] = service.losses((COMMON + model) % values + sync, folder)
        print("%s: %.4f" % (kind, list(seen[kind].values())[-1]), file=sys.stderr)
    return seen


def table(title, seen):
    steps = list(next(iter(seen.values())))
    rows = [[title] + ["%d" % s for s in steps] + ["last/exact", "steps to"]]
    last = seen.get("exact", next(iter(seen.values())))[steps[-1]]
    for kind, losses in seen.items():
        reached = [s for s in steps if losses[s] <= 1.02 * last]
        rows.append([kind] + ["%.3f" % losses[s] for s in steps] +
                    ["%.4f" % (losses[steps[-1]] / last), str(reached[0]) if reached else "more"])
    return aligned(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="folder of the installed programs")
    parser.add_argument("--text", nargs="*", default=[], help="text files")
    parser.add_argument("--images", help="folder of Fashion-MNIST's idx files")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--lr", type=float, default=1e-3, help="of GPT-2")
    parser.add_argument("--validated", type=int, default=512, help="held-out samples of a validation")
    parser.add_argument("--kinds", default=";".join(KINDS))
    parser.add_argument("--json", help="write the curves there too")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        service = Service(folder, os.path.abspath(args.bin))
        names = {"train": os.path.join(folder, "train.bin"), "held_out": os.path.join(folder, "held_out.bin")}
        try:
            if args.text:
                service.run("data", "prepare", *args.text, names["train"], "--validation", names["held_out"])
                results["gpt2"] = curves(service, folder, GPT2, names, args)
                print(table("GPT-2", results["gpt2"]))
            if args.images:
                for part, to in (("train", "train"), ("t10k", "held_out")):
                    idx = os.path.join(args.images, part)
                    service.run("data", "prepare-images", "--idx_images", idx + "-images-idx3-ubyte.gz", "--idx_labels",
                                idx + "-labels-idx1-ubyte.gz", names[to], "--force")
                results["resnet"] = curves(service, folder, RESNET, names, args)
                print(table("ResNet", results["resnet"]))
        finally:
            service.run("local", "down")
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
