"""Fully sharded data parallel (FSDP2), as anyone writes it for torchrun, on GPUs or on CPUs. With --checkpoint, and as a job
of Muster, it saves its shards every 10 steps, and continues from the newest checkpoint with any number of ranks.

muster run --ranks 2 -- python examples/exec/fsdp2.py --steps 40
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

try:
    import muster  # reports metrics; not needed
except ImportError:
    muster = None


def newest(folder):
    """The step of the newest complete checkpoint: its metadata is written last."""
    steps = [int(name[5:]) for name in os.listdir(folder)] if folder and os.path.isdir(folder) else []
    return max((step for step in steps if os.path.exists(f"{folder}/step-{step}/.metadata")), default=0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-2)
    job = os.environ.get("MUSTER_JOB_ID")
    parser.add_argument("--checkpoint", default=f"/tmp/{job}" if job else "", help="folder")
    parser.add_argument("--losses", default="", help="file to which rank 0 appends `step loss`")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
    mesh = init_device_mesh(device, (world,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def state():
        of_model, of_optimizer = get_state_dict(model, optimizer)
        return {"model": of_model, "optimizer": of_optimizer}

    begin = newest(args.checkpoint)
    if begin > 0:
        loaded = state()
        dcp.load(loaded, checkpoint_id=f"{args.checkpoint}/step-{begin}")
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for step in range(begin, args.steps):
        generator = torch.Generator().manual_seed(1000 + step)
        inputs = torch.randn(32, 16, generator=generator).to(device)
        targets = inputs.sum(dim=1, keepdim=True).sin()
        own = slice(rank * 32 // world, (rank + 1) * 32 // world)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[own]), targets[own])
        loss.backward()
        optimizer.step()
        mean = loss.detach() / world
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step + 1} loss {mean.item():.6f}", flush=True)
            if args.losses:
                with open(args.losses, "a") as file:
                    file.write(f"{step + 1} {mean.item()!r}\n")
            if muster:
                muster.report(step + 1, loss=mean)
        if args.checkpoint and (step + 1) % 10 == 0:
            dcp.save(state(), checkpoint_id=f"{args.checkpoint}/step-{step + 1}")
            if rank == 0 and muster:
                muster.checkpoint_done(f"{args.checkpoint}/step-{step + 1}", step + 1)
    # A thread of Gloo that still frees a tensor while Python shuts down aborts the process (pytorch/pytorch#179291).
    if not cuda:
        time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
