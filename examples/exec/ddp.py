"""Distributed data parallel, as anyone writes it for torchrun. Saves its state every 10 steps, and on SIGTERM.

torchrun --nproc_per_node 2 examples/exec/ddp.py --steps 40
muster run --ranks 2 -- python examples/exec/ddp.py --steps 40
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

try:
    import muster  # reports metrics; not needed
except ImportError:
    muster = None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.1)
    job = os.environ.get("MUSTER_JOB_ID")
    parser.add_argument("--checkpoint", default=f"/tmp/{job}.pt" if job else "ddp.pt")
    parser.add_argument("--losses", default="", help="file to which rank 0 appends `step loss`")
    parser.add_argument("--crash_at", type=int, default=0, help="rank 1 kills itself there, in its first attempt")
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    if os.path.exists(args.checkpoint):
        state = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    ddp = DistributedDataParallel(model)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))

    def save():
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                       args.checkpoint + ".new")
            os.replace(args.checkpoint + ".new", args.checkpoint)
            if muster:
                muster.checkpoint_done(args.checkpoint, step)
        dist.barrier()

    while step < args.steps:
        generator = torch.Generator().manual_seed(1000 + step)
        inputs = torch.randn(32, 16, generator=generator).to(device)
        targets = inputs.sum(dim=1, keepdim=True).sin()
        own = slice(rank * 32 // world, (rank + 1) * 32 // world)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(inputs[own]), targets[own])
        loss.backward()
        optimizer.step()
        step += 1
        # All ranks see the same sum, so they stop after the same step.
        seen = torch.tensor([loss.item() / world, float(bool(asked))], device=device)
        dist.all_reduce(seen)
        if rank == 0:
            print(f"step {step} loss {seen[0].item():.6f}", flush=True)
            if args.losses:
                with open(args.losses, "a") as file:
                    file.write(f"{step} {seen[0].item()!r}\n")
            if muster:
                muster.report(step, loss=seen[0])
        if step % 10 == 0 or step == args.steps or seen[1] > 0:
            save()
        if seen[1] > 0:
            break
        if step == args.crash_at and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
