"""What the peers that train on one or several ranks share: a rank's part of a batch, and processes."""
import json
import os
import sys
import tempfile

import torch.distributed as dist


def share_of(samples, ranks, rank):
    """First sample and count of a rank: the first ranks have one more if it does not divide."""
    each, left = divmod(samples, ranks)
    return rank * each + min(rank, left), each + (rank < left)


def train_ranks(train, config):
    """One forked process for each rank; returns the answer of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        read, write = os.pipe()
        children = []
        for rank in range(config["ranks"]):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    dist.init_process_group("gloo", init_method="file://%s/store" % folder, rank=rank,
                                            world_size=config["ranks"])
                    answer = json.dumps(train(config, rank))
                    if rank == 0:
                        with os.fdopen(write, "w") as f:
                            f.write(answer)
                    dist.destroy_process_group()
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        os.close(write)
        with os.fdopen(read) as f:
            answer = f.read()
        if any(os.waitpid(child, 0)[1] != 0 for child in children):
            sys.exit("a rank of the peer failed")
    return json.loads(answer)
