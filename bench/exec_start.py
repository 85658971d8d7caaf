#!/usr/bin/env python3
"""How long `muster run` takes from the command to the first line of the script on every rank, beside torchrun.

    tools/install.sh /tmp/muster && PATH=/tmp/muster:$PATH bench/exec_start.py --python PYTHON_WITH_TORCH

Pairs: torchrun and `muster run` in turns, each with 2 and with 4 ranks, against a service that runs already. The script only
notes the time, so what is measured is the launcher: its own start, processes, the rendezvous, and the interpreter.
"""

import argparse
import glob
import os
import statistics
import subprocess
import sys
import tempfile
import time

SCRIPT = """
import os, sys, time
now = time.time()
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write(repr(now))
"""


def seconds(command, ranks, environment):
    """From the start of `command`, which gets a folder as its last argument, to the last rank's first line."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.time()
        subprocess.run(command + [folder], env=environment, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        times = [float(open(path).read()) for path in glob.glob(os.path.join(folder, "*"))]
        assert len(times) == ranks, (command, times)
        return max(times) - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-") as home:
        script = os.path.join(home, "first_line.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        environment = dict(os.environ, HOME=home, MUSTER_RUNTIME_DIR=os.path.join(home, "run"),
                           XDG_STATE_HOME=os.path.join(home, "state"), XDG_CONFIG_HOME=os.path.join(home, "config"))
        environment.pop("MUSTER_ADDRESS", None)
        subprocess.run(["muster", "local", "up", "--slots", "4"], env=environment, check=True)
        try:
            print("| ranks | torchrun min | median | muster run min | median | muster / torchrun, of medians |")
            print("|---|---|---|---|---|---|")
            for ranks in (2, 4):
                theirs, ours = [], []
                for _ in range(args.pairs):
                    theirs.append(seconds([args.python, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks),
                                           script], ranks, environment))
                    ours.append(seconds(["muster", "run", "--ranks", str(ranks), "--device", "cpu", "--", args.python,
                                         script], ranks, environment))
                medians = statistics.median(theirs), statistics.median(ours)
                print(f"| {ranks} | {min(theirs):.2f} s | {medians[0]:.2f} s | {min(ours):.2f} s | {medians[1]:.2f} s "
                      f"| {medians[1] / medians[0]:.2f} |", flush=True)
        finally:
            subprocess.run(["muster", "local", "down"], env=environment, check=True)


if __name__ == "__main__":
    main()
