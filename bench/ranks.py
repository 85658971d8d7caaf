#!/usr/bin/env python3
"""Data parallel ranks on this machine compared to PyTorch's DistributedDataParallel over Gloo, interleaved in one run.

    bazel build //bench:ranks_side && python3 bench/ranks.py [--link-mbit 1200] [--json FILE]

For each case five groups of processes take turns, a few steps each, for several rounds: ours and PyTorch's, each also
without reductions, and our reductions alone; idle groups wait on a pipe. A step takes as long as its slowest
rank, a time is the smallest of a round's steps; ratios are taken within a round, with their median and range.
  exposed  (step - the same step without reductions) as a share of the step
  hidden   1 - exposed time / time of the reductions alone
  cpu      processor time of a rank's step less that of the same step without reductions, all threads: if there are
           no more cores than ranks, this work cannot overlap
Memory is the largest rank's peak resident size less what it held before its model existed.
--link-mbit runs everything in a network namespace of its own, whose loopback is that slow (tc tbf, both directions
together), and implies --sockets. The PyTorch interpreter is $MUSTER_PEER_PYTHON (tools/fetch_torch.sh peer
makes it).
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile

from aligned import aligned
from machine import machine, mkl_code_path

CASES = {
    "tiny": {"layers": 4, "heads": 4, "width": 128, "vocabulary": 256, "context": 128, "sequences": 8, "steps": 8},
    "6x384": {"layers": 6, "heads": 6, "width": 384, "vocabulary": 256, "context": 256, "sequences": 4, "steps": 1},
    "12x256": {"layers": 12, "heads": 4, "width": 256, "vocabulary": 256, "context": 256, "sequences": 4, "steps": 1},
}
# The environment that the worker daemon gives to a trainer.
OURS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "10000", "MKL_CBWR": mkl_code_path()}


class Group:
    """The processes of one job, which run steps together on request. wrap(rank): words before a rank's command."""

    def __init__(self, command, environment, ranks, of_rank=None, wrap=lambda rank: []):
        self.folder = tempfile.TemporaryDirectory()
        self.ranks = [
            subprocess.Popen(wrap(r) + command + ["--rank", str(r), "--folder", self.folder.name], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True,
                             env={**os.environ, **environment, **(of_rank[r] if of_rank else {})}) for r in range(ranks)]
        self.ready = self.read()

    def read(self):
        answers = []
        for rank in self.ranks:
            line = rank.stdout.readline()
            if not line:
                sys.exit("ended early with status %s: %s" % (rank.wait(), " ".join(rank.args)))
            answers.append(json.loads(line))
        return answers

    def ask(self, steps):
        for rank in self.ranks:
            rank.stdin.write("%d\n" % steps)
            rank.stdin.flush()
        return self.read()

    def cpu_milliseconds(self):
        """Of all threads so far, a rank on average; the kernel counts nanoseconds."""
        total = 0
        for rank in self.ranks:
            tasks = "/proc/%d/task" % rank.pid
            for task in os.listdir(tasks):
                with contextlib.suppress(FileNotFoundError):  # it has just ended
                    with open(os.path.join(tasks, task, "schedstat"), encoding="ascii") as f:
                        total += int(f.read().split()[0])
        return total / 1e6 / len(self.ranks)

    def run(self, steps):
        before = self.cpu_milliseconds()
        answers = self.ask(steps)
        return {"milliseconds": min(max(times) for times in zip(*(a["milliseconds"] for a in answers))),
                "mean_milliseconds": max(sum(a["milliseconds"]) for a in answers) / steps,
                "cpu_milliseconds": (self.cpu_milliseconds() - before) / steps,
                "memory_bytes": max(a["memory_bytes"] for a in answers), "losses": answers[0].get("losses")}

    def end(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()
        self.folder.cleanup()


def spread(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def measure(name, ranks, args):
    case = dict(CASES[name])
    steps = case.pop("steps")
    flags = [word for key, value in {**case, "threads": args.threads, "ranks": ranks}.items()
             for word in ("--" + key.replace("_", "-"), str(value))]
    omp = {"OMP_NUM_THREADS": str(args.threads), "GLOO_SOCKET_IFNAME": "lo"}
    peer = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")]

    def ours(mode):
        sockets = ["--sockets"] if args.sockets or args.link_mbit else []
        return Group([args.side, "--reduce", mode] + sockets + flags, {**omp, **OURS}, ranks)

    groups = {"ours": ours("full"), "ours_none": ours("none"), "ours_only": ours("only"),
              "torch": Group(peer + flags, omp, ranks), "torch_none": Group(peer + ["--reduce", "none"] + flags, omp, ranks)}
    for group in groups.values():
        group.run(3)
    rounds = [{key: group.run(steps) for key, group in groups.items()} for _ in range(args.rounds)]
    for group in groups.values():
        group.end()
    times = {key: [r[key]["milliseconds"] for r in rounds] for key in groups}
    cpu = {key: [r[key]["cpu_milliseconds"] for r in rounds] for key in groups}
    tokens = case["context"] * case["sequences"] * ranks
    exposed = [a - b for a, b in zip(times["ours"], times["ours_none"])]
    torch_exposed = [a - b for a, b in zip(times["torch"], times["torch_none"])]
    return {
        "case": name, "ranks": ranks, "threads": args.threads, "rounds": args.rounds, "link_mbit": args.link_mbit,
        "milliseconds": {key: spread(values) for key, values in times.items()},
        "tokens_per_second": {key: tokens / min(times[key]) * 1e3 for key in ("ours", "torch")},
        "speed_over_torch": spread([b / a for a, b in zip(times["ours"], times["torch"])]),
        "exposed_milliseconds": spread(exposed), "torch_exposed_milliseconds": spread(torch_exposed),
        "cpu_milliseconds": {key: spread(values) for key, values in cpu.items()},
        "reductions_cpu_milliseconds": spread([a - b for a, b in zip(cpu["ours"], cpu["ours_none"])]),
        "torch_reductions_cpu_milliseconds": spread([a - b for a, b in zip(cpu["torch"], cpu["torch_none"])]),
        "hidden": spread([1 - e / c for e, c in zip(exposed, times["ours_only"])]),
        "memory_bytes": {key: rounds[-1][key]["memory_bytes"] for key in ("ours", "torch")},
        "memory_over_torch": rounds[-1]["ours"]["memory_bytes"] / rounds[-1]["torch"]["memory_bytes"],
    }


def table(results):
    def of(s, form):
        return "%s (%s-%s)" % tuple(form % s[k] for k in ("median", "min", "max"))

    def row(r):
        return [r["case"], str(r["ranks"]), "%.1f" % r["milliseconds"]["ours"]["min"],
                "%.1f" % r["milliseconds"]["torch"]["min"], "%.0f" % r["tokens_per_second"]["ours"],
                of(r["speed_over_torch"], "%.2f"), of(r["exposed_milliseconds"], "%.1f"),
                of(r["torch_exposed_milliseconds"], "%.1f"), "%.1f" % r["milliseconds"]["ours_only"]["median"],
                of(r["reductions_cpu_milliseconds"], "%.1f"), of(r["torch_reductions_cpu_milliseconds"], "%.1f"),
                of(r["hidden"], "%.2f"), "%.1f" % (r["memory_bytes"]["ours"] / 2**20),
                "%.1f" % (r["memory_bytes"]["torch"] / 2**20), "%.2f" % r["memory_over_torch"]]
    head = ["case", "ranks", "ours ms", "torch ms", "tokens/s", "speed/torch", "exposed ms", "torch exposed ms",
            "reductions ms", "cpu ms", "torch cpu ms", "hidden", "MiB/rank", "torch MiB", "ratio"]
    return aligned([head] + [row(r) for r in results])


def on_slow_link(mbit):
    """Runs this script again where loopback is slow."""
    setup = ("ip link set lo up && tc qdisc add dev lo root tbf rate %dmbit burst 1m latency 2s && exec \"$@\"" % mbit)
    os.execvp("unshare", ["unshare", "-rn", "sh", "-c", setup, "sh", sys.executable] + sys.argv + ["--in-namespace"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--link-mbit", "--link_mbit", type=int, default=0, help="0: as fast as loopback is")
    parser.add_argument("--sockets", action="store_true",
                        help="ours by Gloo, as between machines, where they would read each other's memory")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    if args.link_mbit and not args.in_namespace:
        on_slow_link(args.link_mbit)
    results = [measure(name, int(ranks), args) for name in args.cases.split(",") for ranks in args.ranks.split(",")]
    print(table(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
