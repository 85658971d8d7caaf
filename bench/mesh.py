#!/usr/bin/env python3
"""A Llama on two ranks of this machine, as a pipeline by 1F1B or by tensor parallelism, compared to PyTorch's.

    bazel build //bench:ranks_side && python3 bench/mesh.py [--modes pipeline,tensor,sequence] [--json FILE]

  pipeline   two stages; torch.distributed.pipelining with the same cut
  tensor     parallel: {tensor: 2}; parallelize_module
  sequence   the same with sequence_parallel: true; the same with SequenceParallel

Both sides begin with the same weights and train on the same tokens; their losses must agree within 5e-6 in the first 20
steps. (Steps repeat one batch, so later differences in rounding grow as it is learnt by heart.)
Groups of processes take turns, a few steps each, for several rounds; idle groups wait on a pipe. A step takes as long as
its slowest rank, a time is the smallest of a round's steps; ratios are taken within a round, with their median and range.
Memory is each rank's: peak resident size less what the process held before its model existed, beside the tensors that
were planned and counted; PyTorch's is that of its steps alone. "less code" is the ratio without the pages of programs and
libraries that were read in meanwhile, which all processes of a machine share. The head is not tied. PyTorch runs over Gloo, by the
interpreter $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os
import sys
import tempfile

from aligned import aligned
from machine import machine
from ranks import OURS, Group, on_slow_link, spread

CASES = {
    "tiny": {"layers": 4, "heads": 4, "key_value_heads": 2, "inner": 352, "width": 128, "vocabulary": 256,
             "context": 128, "sequences": 16, "steps": 8},
    "6x384": {"layers": 6, "heads": 6, "key_value_heads": 2, "inner": 1024, "width": 384, "vocabulary": 256,
              "context": 256, "sequences": 8, "steps": 1},
}
RANKS = 2
MICROBATCHES = 8  # of a pipeline
MODES = {"pipeline": ["--stages", str(RANKS)], "tensor": ["--tensor", str(RANKS)],
         "sequence": ["--tensor", str(RANKS), "--sequence-parallel"]}
LOSS_LIMIT, LOSS_STEPS = 5e-6, 20


def start(name, mode, folder, args):
    """The groups of both sides, and the layers of a pipeline's first stage."""
    case = {**CASES[name], "threads": args.threads}
    del case["steps"]
    shape = [word for key, value in case.items() for word in ("--" + key.replace("_", "-"), str(value))]
    omp = {"OMP_NUM_THREADS": str(args.threads), "GLOO_SOCKET_IFNAME": "lo"}
    model = os.path.join(folder, "model.safetensors")
    side = [args.side, "--family", "llama"] + shape
    Group(side + ["--write", model], {**omp, **OURS}, 1).end()
    flags = ["--ranks", str(RANKS)] + MODES[mode]
    if mode == "pipeline":
        flags += ["--microbatch", str(case["sequences"] // MICROBATCHES)]
    ours = Group(side + flags + (["--sockets"] if args.sockets else []), {**omp, **OURS}, RANKS)
    peer = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mesh_peer.py")
    cut = ours.ready[0]["units"] - 1  # without the embedding
    torch = Group([args.python, peer, "--model", model, "--cut", str(cut), "--norm", args.norm] + shape + flags, omp, RANKS)
    return {"ours": ours, "torch": torch}, cut


def measure(name, mode, args):
    with tempfile.TemporaryDirectory() as folder:
        groups, cut = start(name, mode, folder, args)
        losses = {key: [] for key in groups}

        def run(key, steps):
            answers = groups[key].ask(steps)
            losses[key] += answers[0]["losses"]
            return answers

        def slowest(key):
            return min(max(times) for times in zip(*(a["milliseconds"] for a in run(key, CASES[name]["steps"]))))

        for key in groups:
            run(key, 3)
        rounds = [{key: slowest(key) for key in groups} for _ in range(args.rounds)]
        last = {key: run(key, 1) for key in groups}
        for group in groups.values():
            group.end()

    def largest(key, less=None):
        return max(a["memory_bytes"] - a.get(less, 0) for a in last[key])
    return {
        "case": name, "mode": mode, "threads": args.threads, "rounds": args.rounds,
        "layers_of_first_stage": cut if mode == "pipeline" else None,
        "milliseconds": {key: spread([r[key] for r in rounds]) for key in groups},
        "speed_over_torch": spread([r["torch"] / r["ours"] for r in rounds]),
        "losses": losses,
        "loss_difference": max(abs(a - b) / b for a, b in list(zip(losses["ours"], losses["torch"]))[:LOSS_STEPS]),
        "memory_bytes": {key: [a["memory_bytes"] for a in last[key]] for key in groups},
        "code_bytes": {key: [a["code_bytes"] for a in last[key]] for key in groups},
        "memory_over_torch": largest("ours") / largest("torch"),
        "memory_over_torch_less_code": largest("ours", "code_bytes") / largest("torch", "code_bytes"),
        "planned_bytes": [a["planned_bytes"] for a in last["ours"]],
        "counted_bytes": [a["tensor_bytes"] for a in last["ours"]],
    }


def table(results):
    def mib(values):
        return " ".join("%.1f" % (v / 2**20) for v in values)

    def row(r):
        s, cut = r["speed_over_torch"], r["layers_of_first_stage"]
        return [r["case"], r["mode"] + (" cut after %d" % cut if cut else ""), "%.1f" % r["milliseconds"]["ours"]["min"],
                "%.1f" % r["milliseconds"]["torch"]["min"], "%.2f (%.2f-%.2f)" % (s["median"], s["min"], s["max"]),
                mib(r["planned_bytes"]), mib(r["counted_bytes"]), mib(r["memory_bytes"]["ours"]),
                mib(r["memory_bytes"]["torch"]), "%.2f" % r["memory_over_torch"],
                "%.2f" % r["memory_over_torch_less_code"], "%.1e" % r["loss_difference"]]
    head = ["case", "mode", "ours ms", "torch ms", "speed/torch", "planned MiB", "counted MiB", "resident MiB", "torch MiB",
            "ratio", "less code", "losses differ by"]
    return aligned([head] + [row(r) for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--norm", default="torch", choices=("transformers", "torch"), help="PyTorch's RMSNorm")
    parser.add_argument("--sockets", action="store_true", help="ours by Gloo, as between machines")
    parser.add_argument("--link-mbit", "--link_mbit", type=int, default=0, help="as bench/ranks.py")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    if args.link_mbit and not args.in_namespace:
        on_slow_link(args.link_mbit)
    args.sockets |= args.link_mbit > 0
    results = [measure(name, mode, args) for name in args.cases.split(",") for mode in args.modes.split(",")]
    print(table(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)
    wrong = [r for r in results if not r["loss_difference"] <= LOSS_LIMIT]
    if wrong:
        sys.exit("losses differ by more than %.0e: %s" % (LOSS_LIMIT, ", ".join(r["case"] + " " + r["mode"] for r in wrong)))


if __name__ == "__main__":
    main()
