#!/usr/bin/env python3
"""Ranks of two nodes over a limited link, compared to PyTorch's DistributedDataParallel and its hooks, in one run.

    bazel build //bench:ranks_side //bench:slow_wire //bench:predict_network //bench:compression &&
        python3 bench/networks.py [--links 100:0,100:20] [--json FILE]

The nodes are two network namespaces with half of the ranks each; what leaves a node passes a link of so many Mbit/s (0: as fast
as the kernel is), by tc tbf, or one with milliseconds of latency in each direction, by bench/slow_wire, a process that takes
some of the machine's time. Inside a node ours read memory, and PyTorch uses loopback. For each link all groups of processes
take turns, a few steps each, for several rounds; idle groups wait on a pipe, and their first step is not counted. A time is the
mean over a round's steps of the slowest rank, since ranks that reduce nothing do not stay together; ratios are taken within a
round, with their median and range.
  none   no reductions: ranks that share a core drift apart
  diloco each node's ranks are a replica of their own; they exchange what --every steps have changed, in int8, and a round
         has so many steps. Which contributions count they read from files: a coordinator's answers are not in the time
  loss   the ranks sum the loss alone, in each step
  comm   the step less that of `loss`; of PyTorch's, less the same one without reductions
  MB     that leave a node in a step, both nodes on average, headers and acknowledgements included
  plan   the step as the simulator predicts it (bench/predict_network), over the step's median. Its rates of computing are
         those of `loss`, or of `none` for diloco and where the link has latency. What a byte over sockets takes of a core is measured
         first, on this link, by ranks that do nothing but sum; what an element of a compressed sum takes, by
         bench/compression
  auto   what the coordinator would choose of AUTO for this link (predict_network --auto), and its step over the fastest of these
  own    the share of the time that MB take on the link alone, of comm: 1 is a link that is never idle
All over Gloo with AdamW and clipping, one thread a rank. The PyTorch interpreter is $MUSTER_PEER_PYTHON
(tools/fetch_torch.sh peer makes it).
"""
import argparse
import json
import os
import subprocess
import sys
import time

from aligned import aligned
from machine import machine
from ranks import CASES, OURS, Group, spread

OURS_BY = {"flat": "", "top_k": "top_k 0.01 bf16 exact", "sampled": "top_k 0.01 bf16 sampled", "power_sgd": "power_sgd 4",
           "int8": "int8 256"}
# As bench/compression names them.
COMPRESSIONS = {"top_k": "top_k 1/100 in bf16", "sampled": "top_k 1/100 in bf16 sampled", "power_sgd": "power_sgd of rank 4",
                "int8": "int8"}
PAYLOAD = 1448 / 1514  # of a frame that TCP sends
AUTO = ["flat", "levels", "int8", "levels_int8"]  # what hierarchy and compression: auto choose from
MODES = ["flat", "levels", "diloco", "top_k", "levels_top_k", "levels_sampled", "power_sgd", "levels_int8", "torch", "torch_bf16",
         "torch_powersgd"]


def busy_seconds():
    """Of all cores so far; counted in ticks of 10 ms."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Nodes:
    """Two network namespaces that a cable joins; they end with the object."""

    def __init__(self):
        self.holders = []
        for node in (0, 1):
            holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
            holder.stdout.readline()  # it is in its namespace
            self.holders.append(holder)
        subprocess.run("ip link add cable0 type veth peer name cable1", shell=True, check=True)
        for node in (0, 1):
            subprocess.run("ip link set cable%d netns %d" % (node, self.holders[node].pid), shell=True, check=True)
            self.run(node, "ip link set cable%d name eth0 && ip addr add %s/24 dev eth0 && ip link set eth0 up && "
                           "ip link set lo up" % (node, self.address(node)))
        self.device, self.wire = "eth0", None

    def address(self, node):
        return "10.7%d.0.%d" % (8 if getattr(self, "device", "") == "slow0" else 9, node + 1)

    def enter(self, node):
        return ["nsenter", "--net=/proc/%d/ns/net" % self.holders[node].pid, "--"]

    def run(self, node, line):
        done = subprocess.run(self.enter(node) + ["sh", "-c", line], check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout

    def limit(self, mbit, milliseconds, program):
        self.device = "slow0" if milliseconds else "eth0"
        if milliseconds:
            if self.wire is None:
                spaces = ["/proc/%d/ns/net" % holder.pid for holder in self.holders]
                self.wire = subprocess.Popen([program] + spaces, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.wire.stdin.write("%g %g\n" % (mbit, milliseconds))
            self.wire.stdin.flush()
            if self.wire.stdout.readline() != "set\n":
                sys.exit("networks.py: %s ended" % program)
            return
        for node in (0, 1):
            self.run(node, "tc qdisc del dev eth0 root 2>/dev/null; true")
            if mbit:
                # What may pass at once after a pause: half a millisecond's bytes.
                burst = max(8, mbit * 1000 // 16 // 1024)
                self.run(node, "tc qdisc add dev eth0 root tbf rate %dmbit burst %dkb latency 4s" % (mbit, burst))

    def sent(self):
        links = [json.loads(self.run(node, "ip -j -s link show dev " + self.device))[0] for node in (0, 1)]
        return [link["stats64"]["tx"]["bytes"] for link in links]

    def end(self):
        if self.wire is not None:
            self.wire.stdin.close()
            self.wire.wait()
        for holder in self.holders:
            holder.kill()
            holder.wait()


def measure(name, mbit, milliseconds, nodes, compressing, args):
    case = dict(CASES[name])
    case.pop("steps")
    half = args.ranks // 2
    flags = [word for key, value in {**case, "sequences": args.sequences, "threads": 1, "ranks": args.ranks}.items()
             for word in ("--" + key.replace("_", "-"), str(value))]
    nodes.limit(mbit, milliseconds, args.wire)
    omp = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": nodes.device}
    peer = [args.python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_peer.py")]

    def kind_of(mode):
        return mode.replace("levels_", "").replace("levels", "flat")

    def options(mode):
        return ["--compression", OURS_BY[kind_of(mode)]] + (["--ranks-on-node", str(half)] if mode.startswith("levels") else [])

    def more_of(mode):
        return ["--replicas", "2", "--every", str(args.every)] if mode == "diloco" else options(mode)

    def start(mode):
        def wrap(rank):
            return nodes.enter(rank // half)
        if mode.startswith("torch"):
            hook = mode.split("_")[1:]
            more = ["--reduce", "none"] if hook == ["none"] else ["--hook"] + hook if hook else []
            return Group(peer + more + flags, omp, args.ranks, wrap=wrap)
        if mode in ("none", "loss", "only"):
            more = ["--reduce", mode]
        else:
            more = more_of(mode)
        hosts = [{"MUSTER_BENCH_HOST": nodes.address(rank // half)} for rank in range(args.ranks)]
        return Group([args.side] + more + flags, {**omp, **OURS}, args.ranks, of_rank=hosts, wrap=wrap)

    def socket_megabytes():
        """A second of a core: in a ring a rank receives as much as leaves a node. All that the machine does counts, since
        the kernel moves a part of the bytes in interrupts, beside any process."""
        group = start("only")
        group.run(3)
        before, sent, begin = busy_seconds(), nodes.sent(), time.monotonic()
        while time.monotonic() < begin + 2:
            group.run(args.steps)
        seconds = (busy_seconds() - before) / args.ranks
        moved = sum(b - a for a, b in zip(sent, nodes.sent())) / 2
        group.end()
        return PAYLOAD * moved / 1e6 / seconds

    socket_mb = socket_megabytes()
    modes = ["none", "loss", "torch_none"] + args.modes.split(",")
    groups = {mode: start(mode) for mode in modes}
    for group in groups.values():
        group.run(3)  # PowerSGD begins after two
    rounds = []
    for _ in range(args.rounds):
        seen = {}
        for mode, group in groups.items():
            group.run(1)  # after a pause TCP sends little at once; in training there are no pauses
            before = nodes.sent()
            steps = args.every if mode == "diloco" else args.steps
            seen[mode] = group.run(steps)
            seen[mode]["sent"] = sum(b - a for a, b in zip(before, nodes.sent())) / 2 / steps
        rounds.append(seen)
    for group in groups.values():
        group.end()

    def ask(alone, more):
        words = [args.predictor, "--link-mbit", str(mbit), "--link-ms", str(milliseconds), "--alone-ms", str(alone),
                 "--socket-mb", str(socket_mb), "--cores", str(len(os.sched_getaffinity(0)))] + more + flags
        return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    alone_by = "none" if milliseconds else "loss"  # the latency of the loss's sum is not computing
    lone, without = (spread([r[by]["mean_milliseconds"] for r in rounds])["median"] for by in (alone_by, "none"))
    chosen = ask(lone, ["--auto", "--compressing-ns", str(compressing["int8"])])["chosen"] if mbit else None

    rows = []
    for mode in modes:
        alone = "torch_none" if mode.startswith("torch") else "none" if mode == "loss" else "loss"
        comm = [r[mode]["mean_milliseconds"] - r[alone]["mean_milliseconds"] for r in rounds]
        megabytes = min(r[mode]["sent"] for r in rounds) / 1e6
        row = {"case": name, "mbit": mbit, "latency": milliseconds, "mode": mode, "ranks": args.ranks, "sent_megabytes": megabytes,
               "milliseconds": spread([r[mode]["mean_milliseconds"] for r in rounds])}
        if mode != alone:
            row["communication"] = spread(comm)
            if mbit and mode in args.modes.split(",") and not mode.startswith("torch"):
                nanoseconds = compressing.get(kind_of(mode), 0)
                calibrated = without if mode == "diloco" else lone  # its steps wait for no rank of the other node
                predicted = ask(calibrated, more_of(mode) + ["--compressing-ns", str(nanoseconds)])["step_milliseconds"]
                row["predicted"] = predicted / row["milliseconds"]["median"]
                row["rates"] = {"socket_megabytes_per_second": socket_mb, "compressing_nanoseconds": nanoseconds}
            row["busy"] = megabytes * 8e3 / mbit / row["communication"]["median"] if mbit else None
            row["over_none"] = spread([r[mode]["mean_milliseconds"] / r[alone]["mean_milliseconds"] for r in rounds])
            for other in ("flat", "torch"):
                if other in modes:
                    row["over_" + other] = spread([r[other]["mean_milliseconds"] / r[mode]["mean_milliseconds"] for r in rounds])
            if mode == chosen:
                among = [spread([r[other]["mean_milliseconds"] for r in rounds])["median"] for other in AUTO if other in modes]
                row["over_best"] = row["milliseconds"]["median"] / min(among)
        rows.append(row)
    return rows


def table(rows):
    def of(row, key):
        return "%.2f (%.2f-%.2f)" % tuple(row[key][k] for k in ("median", "min", "max")) if key in row else ""

    def cells(r):
        mode = r["mode"] + (" (auto, %.2f of the fastest)" % r["over_best"] if "over_best" in r else "")
        return [r["case"], str(r["mbit"] or "any"), "%g" % r["latency"], mode, "%.1f" % r["milliseconds"]["min"],
                "%.1f" % r["communication"]["median"] if "communication" in r else "", "%.2f" % r["sent_megabytes"],
                "%.2f" % r["predicted"] if "predicted" in r else "", "%.2f" % r["busy"] if r.get("busy") else "", of(r, "over_flat"), of(r, "over_torch"), of(r, "over_none")]
    head = ["case", "Mbit/s", "ms", "by", "step ms", "comm ms", "MB", "plan", "own", "speed/flat", "speed/torch", "step/loss"]
    return aligned([head] + [cells(r) for r in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--wire", default="bazel-bin/bench/slow_wire", help="the built slow_wire")
    parser.add_argument("--predictor", default="bazel-bin/bench/predict_network", help="the built predict_network")
    parser.add_argument("--compression", default="bazel-bin/bench/compression", help="the built compression")
    parser.add_argument("--python", default=os.environ.get("MUSTER_PEER_PYTHON",
                                                           os.path.expanduser("~/.cache/muster/peer/bin/python")))
    parser.add_argument("--cases", default="tiny")
    parser.add_argument("--links", default="100:0,1000:0,0:0", help="Mbit/s:milliseconds")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=2, help="of a rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of a round")
    parser.add_argument("--every", type=int, default=50, help="steps between two exchanges of diloco")
    parser.add_argument("--in-namespace", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    if not args.in_namespace:  # the cable is made in a namespace of its own
        os.execvp("unshare", ["unshare", "-rn", sys.executable] + sys.argv + ["--in-namespace"])
    done = subprocess.run([args.compression, "--json"], check=True, capture_output=True, text=True, env={**os.environ, **OURS})
    per_million = json.loads(done.stdout)  # milliseconds
    compressing = {kind: per_million[name] for kind, name in COMPRESSIONS.items()}  # nanoseconds of an element
    nodes = Nodes()
    try:
        rows = []
        for name in args.cases.split(","):
            for link in args.links.split(","):
                mbit, milliseconds = link.split(":")
                rows += measure(name, int(mbit), float(milliseconds), nodes, compressing, args)
        print(table(rows))
        print(machine())
    finally:
        nodes.end()
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
