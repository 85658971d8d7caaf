#!/usr/bin/env python3
"""How long the stages of a pipeline idle: measured, beside the simulator's prediction, for every schedule.

    bazel build //bench:ranks_side //bench:calibrate_side //bench:scaling && sudo python3 bench/bubble.py [--json FILE]

Ranks of this machine, one thread each, train a GPT-2 as a pipeline with one rank a stage. More stages than cores would take turns
on them, and what one stage idles another would use; so each rank is held to --share of a core by the kernel's CPU
controller (cgroups, which need root). With no more stages than cores, --share 1 needs neither.

Groups of processes, one for each schedule, take turns, a step each, for several rounds. A step takes as long as its slowest
rank. The bubble is the share of the step in which the stage that computes longest does not: ops are timed by the engine's
recorder. The prediction is that of //bench:scaling, at rates that calibrate_side measures in the same rounds.
Steps are medians, and so are ratios to 1f1b, which are taken within a round.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess

from aligned import aligned
from machine import machine
from ranks import OURS, Group
from scaling import best, rates

SHAPE = {"layers": 8, "heads": 6, "width": 384, "vocabulary": 256, "context": 256}
SCHEDULES = {"gpipe": ("gpipe", 1, "gpipe"), "1f1b": ("1f1b", 1, "1f1b"),
             "interleaved": ("interleaved", 2, "interleaved, 2 chunks"),
             "zb-h1": ("zero_bubble", 1, "zero bubble, ZB-H1"), "zb-v": ("zero_bubble", 2, "zero bubble, ZB-V")}
PERIOD_MICROSECONDS = 5000
CONTROLLER = "/sys/fs/cgroup"


@contextlib.contextmanager
def shares_of_cores(ranks, share):
    """Yields the words that hold a rank's command to a share of a core."""
    if share >= 1:
        yield lambda rank: []
        return
    first = os.path.exists(os.path.join(CONTROLLER, "cgroup.controllers"))  # else the first version of cgroups
    root = CONTROLLER if first else os.path.join(CONTROLLER, "cpu")
    folders = [os.path.join(root, "muster-bubble-%d-%d" % (os.getpid(), rank)) for rank in range(ranks)]
    quota = int(share * PERIOD_MICROSECONDS)
    try:
        for folder in folders:
            os.mkdir(folder)
            limits = {"cpu.max": "%d %d" % (quota, PERIOD_MICROSECONDS)} if first else {
                "cpu.cfs_period_us": PERIOD_MICROSECONDS, "cpu.cfs_quota_us": quota}
            for name, value in limits.items():
                with open(os.path.join(folder, name), "w", encoding="ascii") as f:
                    f.write(str(value))
        yield lambda rank: ["sh", "-c", 'echo $$ > %s/cgroup.procs && exec "$@"' % folders[rank], "sh"]
    finally:
        for folder in folders:
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def words(values):
    return [word for key, value in values.items() for word in ("--" + key, str(value))]


def predicted(stages, microbatches, found, args):
    rows = json.loads(subprocess.run(
        [args.predictor, "--hardware", "cpu", "--model", "tiny", "--compute", "fp32", "--json", "--stages", str(stages),
         "--sequences", str(microbatches // stages), "--ranks_per_node", str(stages)] + words(SHAPE) +
        words({key: value for key, value in found.items() if value}), check=True, capture_output=True, text=True).stdout)["rows"]
    return {row["schedule"]: row for row in rows}


def measure(stages, microbatches, share, args):
    environment = {"OMP_NUM_THREADS": "1", **OURS}
    common = words({**SHAPE, "threads": 1, "ranks": stages})
    with shares_of_cores(stages, share) as wrap:
        calibration = Group([args.calibration] + common + ["--sequences", "1"], environment, stages, wrap=wrap)
        groups = {}
        for name in args.schedules.split(","):
            kind, chunks, _ = SCHEDULES[name]
            groups[name] = Group(
                [args.side, "--stages", str(stages), "--schedule", kind, "--chunks", str(chunks), "--sequences",
                 str(microbatches), "--microbatch", "1", "--busy"] + common, environment, stages, wrap=wrap)
        for group in groups.values():
            group.ask(2)
        found = rates(calibration.ask(1), stages)
        steps = {name: [] for name in groups}
        bubbles = {name: [] for name in groups}
        for _ in range(args.rounds):
            for name, group in groups.items():
                answers = group.ask(1)
                step = max(a["milliseconds"][0] for a in answers)
                steps[name].append(step)
                bubbles[name].append(1 - max(a["computing_milliseconds"] for a in answers) / step)
            found = best(found, rates(calibration.ask(1), stages))
        for group in [calibration, *groups.values()]:
            group.end()
    table = predicted(stages, microbatches, found, args)
    baseline = table[SCHEDULES["1f1b"][2]]["step_seconds"]
    results = []
    for name in groups:
        row = table[SCHEDULES[name][2]]
        ratios = [a / b for a, b in zip(steps[name], steps["1f1b"])]
        results.append({
            "stages": stages, "microbatches": microbatches, "share": share, "schedule": name, "rounds": args.rounds,
            "step_ms": statistics.median(steps[name]), "predicted_ms": 1e3 * row["step_seconds"],
            "over_1f1b": statistics.median(ratios), "over_1f1b_range": [min(ratios), max(ratios)],
            "predicted_over_1f1b": row["step_seconds"] / baseline,
            "bubble": statistics.median(bubbles[name]), "bubble_range": [min(bubbles[name]), max(bubbles[name])],
            "predicted_bubble": row["bubble"], **found})
    return results


def table_of(results):
    head = ["stages", "microbatches", "core", "schedule", "step ms", "predicted", "x 1f1b", "predicted", "bubble", "predicted"]
    return aligned([head] + [
        [str(r["stages"]), str(r["microbatches"]), "%.2f" % r["share"], r["schedule"], "%.0f" % r["step_ms"],
         "%.0f" % r["predicted_ms"], "%.3f (%.3f-%.3f)" % (r["over_1f1b"], *r["over_1f1b_range"]),
         "%.3f" % r["predicted_over_1f1b"],
         "%.1f%% (%.1f-%.1f)" % (100 * r["bubble"], *(100 * b for b in r["bubble_range"])),
         "%.1f%%" % (100 * r["predicted_bubble"])] for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--calibration", default="bazel-bin/bench/calibrate_side", help="the built calibrate_side")
    parser.add_argument("--predictor", default="bazel-bin/bench/scaling", help="the built scaling")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="1f1b among them")
    parser.add_argument("--stages", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4], help="powers of two")
    parser.add_argument("--microbatches", type=lambda text: [int(n) for n in text.split(",")], default=[8],
                        help="multiples of the stages")
    parser.add_argument("--share", type=float, help="of a core for a rank; default: 0.9 of what there is, at most 1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    results = []
    for stages in args.stages:
        cores = len(os.sched_getaffinity(0))
        share = args.share or (1 if stages <= cores else 0.9 * cores / stages)
        for microbatches in args.microbatches:
            results += measure(stages, microbatches, share, args)
    print(table_of(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
