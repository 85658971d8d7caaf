"""The other side of checkpoint.py: the same state saved by PyTorch's distributed checkpoint, async_save, as its
documentation shows it, while a thread of this process computes. Prints a JSON line for each save."""
import argparse
import json
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", required=True)
    parser.add_argument("--shapes", required=True, help="JSON: names and shapes of the state's fp32 tensors")
    parser.add_argument("--checkpoints", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="computing between two saves")
    a = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://" + a.path + ".store")
    with open(a.shapes) as file:
        state = {name: torch.randn(shape) for name, shape in json.load(file).items()}
    work = torch.randn(512, 512)

    def compute(until):
        while time.monotonic() < until:
            work @ work

    pending = None
    for i in range(a.checkpoints):
        compute(time.monotonic() + a.seconds)
        folder = os.path.join(a.path, "step-%d" % i)
        start = time.monotonic()
        if pending is not None:
            pending.result()  # at most one at a time, as ours
        waited = time.monotonic() - start
        pending = dcp.async_save(state, checkpoint_id=folder)
        stall = time.monotonic() - start
        done = {}
        pending.add_done_callback(lambda _, start=start, done=done: done.update(at=time.monotonic() - start))
        compute(time.monotonic() + a.seconds)
        while not pending.done():
            compute(time.monotonic() + 0.05)
        pending.result()
        size = sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))
        print(json.dumps({"stall_seconds": stall, "waited_seconds": waited, "write_seconds": done.get("at"),
                          "bytes": size}), flush=True)
        shutil.rmtree(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
