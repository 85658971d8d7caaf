#!/usr/bin/env python3
"""GPT-2 124M with AdamW on one CPU rank, its state in a file: bytes moved each step, and how fast, beside the disk.

    bazel build //bench:ranks_side && python3 bench/offload.py --folder /nvme

The rank runs in a memory cgroup as small as a container that has no room for the state, so that the file's pages
cannot stay in the page cache; that needs root. In each round the disk's own rates are measured first, by sequential
reads and writes of a file in the same folder that bypass the page cache (O_DIRECT), then some steps, until all that
they wrote is on the disk.
  read, written  in a step, as the kernel counts them for the process (/proc/PID/io)
  ratio          the time that the disk would take for these bytes at its own rates, one after the other, as a share
                 of the step's; it can exceed 1 where the disk reads and writes at the same time
"""
import argparse
import contextlib
import mmap
import os
import statistics
import tempfile
import time

from machine import machine
from ranks import OURS, Group

MODEL = {"layers": 12, "heads": 12, "width": 768, "vocabulary": 50257, "context": 64, "sequences": 1}
MIB = 2.0**20


@contextlib.contextmanager
def memory_cgroup(limit):
    """The file that takes a process's id and the one that says the most memory used, page cache included."""
    second = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    group = tempfile.mkdtemp(prefix="muster-bench-", dir="/sys/fs/cgroup" + ("" if second else "/memory"))
    try:
        name, peak = ("memory.max", "memory.peak") if second else ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
        with open(os.path.join(group, name), "w", encoding="ascii") as file:
            file.write(str(limit))
        yield os.path.join(group, "cgroup.procs"), os.path.join(group, peak)
    finally:
        os.rmdir(group)


def disk_rates(folder, size, block=8 << 20):
    """Bytes a second that the disk writes and reads in order, past the page cache."""
    file, path = tempfile.mkstemp(prefix=".muster-bench-", dir=folder)
    os.unlink(path)
    direct = os.open("/proc/self/fd/%d" % file, os.O_RDWR | os.O_DIRECT)
    buffer = mmap.mmap(-1, block)  # begins at a page
    buffer.write(os.urandom(block))
    rates = []
    for move in (os.pwritev, os.preadv):
        begin = time.monotonic()
        for offset in range(0, size, block):
            if move(direct, [buffer], offset) != block:
                raise OSError("a short transfer")
        if move is os.pwritev:
            os.fsync(direct)
        rates.append(size / (time.monotonic() - begin))
    os.close(direct)
    os.close(file)
    return rates


def moved(pid):
    """Bytes that the process has read from disks and made dirty so far."""
    with open("/proc/%d/io" % pid, encoding="ascii") as file:
        counts = dict(line.split(": ") for line in file.read().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", default="bazel-bin/bench/ranks_side", help="the built ranks_side")
    parser.add_argument("--folder", required=True, help="on the disk to measure")
    parser.add_argument("--limit-mib", "--limit_mib", type=int, default=1280, help="memory of the rank, page cache included")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="of a round")
    parser.add_argument("--disk-mib", "--disk_mib", type=int, default=512, help="of a measurement of the disk")
    args = parser.parse_args()
    flags = [word for key, value in {**MODEL, "threads": 1, "ranks": 1, "offload_to": args.folder}.items()
             for word in ("--" + key.replace("_", "-"), str(value))]
    with memory_cgroup(args.limit_mib << 20) as (procs, peak):
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', procs, args.side] + flags
        group = Group(command, {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **OURS}, 1)
        pid = group.ranks[0].pid
        group.ask(1)  # the first step begins with pages of zeros that were never written
        os.sync()
        ratios, rates = [], []
        print("%5s %10s %10s %8s %8s %8s %12s %6s" % (
            "round", "disk write", "disk read", "step s", "read", "written", "MiB/s moved", "ratio"))
        for number in range(args.rounds):
            write_rate, read_rate = disk_rates(args.folder, args.disk_mib << 20)
            before, begin = moved(pid), time.monotonic()
            answer = group.ask(args.steps)[0]
            os.sync()
            seconds = (time.monotonic() - begin) / args.steps
            read, written = [(after - b) / args.steps for b, after in zip(before, moved(pid))]
            rates.append((read + written) / seconds)
            ratios.append((read / read_rate + written / write_rate) / seconds)
            print("%5d %10.0f %10.0f %8.2f %8.0f %8.0f %12.0f %6.2f" % (
                number + 1, write_rate / MIB, read_rate / MIB, seconds, read / MIB, written / MIB, rates[-1] / MIB,
                ratios[-1]), flush=True)
        with open(peak, encoding="ascii") as file:
            most = int(file.read())
        group.end()
    print("ratio to the disk's own rates: median %.2f, min %.2f; moved: median %.0f MiB/s" % (
        statistics.median(ratios), min(ratios), statistics.median(rates) / MIB))
    print("in the file %.0f MiB; resident at most %.0f MiB, of them %.0f MiB of tensors (planned %.0f); with the page "
          "cache %.0f of %d MiB" % (answer["offloaded_bytes"] / MIB, answer["peak_bytes"] / MIB,
                                    answer["tensor_bytes"] / MIB, answer["planned_bytes"] / MIB, most / MIB,
                                    args.limit_mib))
    print(machine())


if __name__ == "__main__":
    main()
