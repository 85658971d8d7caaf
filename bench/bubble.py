#!/usr/bin/env python3
"""How long the stages of a pipeline idle: measured, beside the simulator's prediction, for every schedule.

    bazel build //bench:ranks_side //bench:calibrate_side //bench:scaling && python3 bench/bubble.py [--json FILE]

Ranks of this machine, one thread each, train a GPT-2 as a pipeline with one rank a stage. More stages than cores take turns on
them, and what one stage idles another would use. So an op that computes takes its processor time over --share of a core, and
its rank sleeps for what is left of that (bench/paced_ops.h); a rank is pinned to a core and always gets at least that share. By
default ranks have 0.6 of the cores together, so that one that the machine holds up for a moment is back in time.

Groups of processes, one for each schedule, take turns, a step each, for several rounds. A step lasts from the begin of its first
op to the end of the last one on any stage. The bubble is the share of the step in which the stage that computes longest computes
nothing. Two predictions stand beside it, both of //bench:scaling: "predicted" at rates that calibrate_side measures in the same
rounds, and "of ops" with the measured times of the step's own ops that compute, which leaves order, messages and waits to the
simulator. Steps and bubbles are medians, and so are ratios to 1f1b, which are taken within a round; "ratio" is the measured bubble
over the predicted one, of the round with the smallest and of the median one.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

from aligned import aligned
from machine import machine
from ranks import OURS, Group
from scaling import best, rates

SHAPE = {"layers": 8, "heads": 6, "width": 384, "vocabulary": 256, "context": 256}
SCHEDULES = {"gpipe": ("gpipe", 1, "gpipe"), "1f1b": ("1f1b", 1, "1f1b"),
             "interleaved": ("interleaved", 2, "interleaved, 2 chunks"),
             "zb-h1": ("zero_bubble", 1, "zero bubble, ZB-H1"), "zb-v": ("zero_bubble", 2, "zero bubble, ZB-V")}


def words(values):
    return [word for key, value in values.items() for word in ("--" + key.replace("_", "-"), str(value))]


def predicted(stages, microbatches, found, args, traces=None):
    """By schedule; with traces, by schedule and rank, with their times of ops that compute."""
    found = dict(found)
    file = tempfile.NamedTemporaryFile("w", suffix=".json")
    if traces is not None:
        json.dump({SCHEDULES[name][2]: [[1e-3 * (end - begin) for _, begin, end in ops] for ops in ranks]
                   for name, ranks in traces.items()}, file)
        file.flush()
        found["computing"] = file.name
    rows = json.loads(subprocess.run(
        [args.predictor, "--hardware", "cpu", "--model", "tiny", "--compute", "fp32", "--json", "--ops", "--stages", str(stages),
         "--sequences", str(microbatches // stages), "--ranks-per-node", str(stages)] + words(SHAPE) +
        words({key: value for key, value in found.items() if value}), check=True, capture_output=True, text=True).stdout)["rows"]
    return {row["schedule"]: row for row in rows}


def messages(answers):
    """Their latency and rate, of a stage that waits for one."""
    word = min(a["word_seconds"] for a in answers if "word_seconds" in a)
    activation = min(a["activation_seconds"] for a in answers if "word_seconds" in a)
    return {"link_seconds": word, "link_rate": answers[0]["activation_bytes"] / max(1e-9, activation - word)}


def step_of(answers):
    """Milliseconds of a step, and by rank of its computing."""
    begin = min(op[1] for a in answers for op in a["ops"])
    end = max(op[2] for a in answers for op in a["ops"])
    return end - begin, [sum(op[2] - op[1] for op in a["ops"]) for a in answers]


def measure(stages, microbatches, share, args):
    environment = {"OMP_NUM_THREADS": "1", **OURS}
    common = words({**SHAPE, "threads": 1, "ranks": stages, "share": share})
    cores = sorted(os.sched_getaffinity(0))

    def wrap(rank):
        return ["taskset", "-c", str(cores[rank % len(cores)])]

    calibration = Group([args.calibration] + common + ["--sequences", "1"], environment, stages, wrap=wrap)
    groups = {}
    for name in args.schedules.split(","):
        kind, chunks, _ = SCHEDULES[name]
        groups[name] = Group(
            [args.side, "--stages", str(stages), "--schedule", kind, "--chunks", str(chunks), "--sequences",
             str(microbatches), "--microbatch", "1"] + common, environment, stages, wrap=wrap)
    for group in groups.values():
        group.ask(2)
    found = None
    steps = {name: [] for name in groups}
    bubbles = {name: [] for name in groups}
    traces = {name: [] for name in groups}
    for _ in range(args.rounds):
        answers = calibration.ask(1)
        now = {**rates(answers, stages), **messages(answers)}
        found = best(found or now, now)
        for name, group in groups.items():
            answers = group.ask(1)
            step, computing = step_of(answers)
            steps[name].append(step)
            bubbles[name].append(1 - max(computing) / step)
            traces[name].append([a["ops"] for a in answers])
    for group in [calibration, *groups.values()]:
        group.end()
    table = predicted(stages, microbatches, found, args)
    replayed = [predicted(stages, microbatches, found, args, {name: traces[name][i] for name in groups})
                for i in range(args.rounds)]
    results = []
    for name in groups:
        of_ops = [r[SCHEDULES[name][2]] for r in replayed]
        row = table[SCHEDULES[name][2]]
        ratios = [a / b for a, b in zip(steps[name], steps["1f1b"])]
        results.append({
            "stages": stages, "microbatches": microbatches, "share": share, "schedule": name, "rounds": args.rounds,
            "step_ms": statistics.median(steps[name]), "predicted_ms": 1e3 * row["step_seconds"],
            "over_1f1b": statistics.median(ratios), "over_1f1b_range": [min(ratios), max(ratios)],
            "predicted_over_1f1b": row["step_seconds"] / table[SCHEDULES["1f1b"][2]]["step_seconds"],
            "bubble": statistics.median(bubbles[name]), "bubble_range": [min(bubbles[name]), max(bubbles[name])],
            "replayed_bubbles": [r["bubble"] for r in of_ops], "bubbles": bubbles[name],
            "predicted_bubble": row["bubble"], "ops": row["ops"], "traces": traces[name], **found})
    return results


def table_of(results):
    head = ["stages", "microbatches", "core", "schedule", "step ms", "predicted", "x 1f1b", "predicted", "bubble", "predicted",
            "ratio", "of ops"]
    return aligned([head] + [
        [str(r["stages"]), str(r["microbatches"]), "%.2f" % r["share"], r["schedule"], "%.0f" % r["step_ms"],
         "%.0f" % r["predicted_ms"], "%.3f (%.3f-%.3f)" % (r["over_1f1b"], *r["over_1f1b_range"]),
         "%.3f" % r["predicted_over_1f1b"],
         "%.1f%% (%.1f-%.1f)" % (100 * r["bubble"], *(100 * b for b in r["bubble_range"])),
         "%.1f%%" % (100 * r["predicted_bubble"]),
         "%.2f, %.2f" % tuple(b / r["predicted_bubble"] for b in (r["bubble_range"][0], r["bubble"])),
         "%.1f%%" % (100 * statistics.median(r["replayed_bubbles"]))] for r in results])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--calibration", default="bazel-bin/bench/calibrate_side", help="the built calibrate_side")
    parser.add_argument("--predictor", default="bazel-bin/bench/scaling", help="the built scaling")
    parser.add_argument("--schedules", default=",".join(SCHEDULES), help="1f1b among them")
    parser.add_argument("--stages", type=lambda text: [int(n) for n in text.split(",")], default=[2, 4], help="powers of two")
    parser.add_argument("--microbatches", type=lambda text: [int(n) for n in text.split(",")], default=[8],
                        help="multiples of the stages")
    parser.add_argument("--share", type=float, help="of a core for a rank, 1: nothing sleeps; default: 0.6 of what there is")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", help="write the results there too")
    args = parser.parse_args()
    results = []
    for stages in args.stages:
        cores = len(os.sched_getaffinity(0))
        share = args.share or 0.6 * min(1, cores / stages)
        for microbatches in args.microbatches:
            results += measure(stages, microbatches, share, args)
    print(table_of(results))
    print(machine())
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
