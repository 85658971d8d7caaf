"""What a training script tells Muster, and what Muster tells it.

    import muster

    for step in range(start, steps):
        loss = train(batch)
        muster.report(step + 1, loss=loss.item(), lr=scheduler.get_last_lr()[0])
        if muster.should_stop():
            save(path)
            muster.checkpoint_done(path, step + 1)
            break

Outside of Muster every call does nothing, so a script needs no `if`. There are no dependencies.

`muster.Client` talks to the coordinator, from anywhere; it needs grpcio and protobuf: pip install muster[client].
`muster.track_wandb` copies a job to Weights & Biases (muster/wandb.py).
"""

import json
import math
import os

__all__ = ["Client", "Error", "checkpoint_done", "data_cursor", "report", "should_stop", "track_wandb"]
__version__ = "0.1.0"


def _number(value):
    """A JSON value: JSON has no nan and inf, so these are text. None: it is no number."""
    if isinstance(value, bool):
        return int(value)
    try:
        number = float(value)  # also of a tensor or an array with one element
    except (TypeError, ValueError):
        return None
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return int(number) if isinstance(value, int) else number


def _append(record):
    path = os.environ.get("MUSTER_REPORT_FILE")
    if not path:
        return
    # One write of one line, so that the lines of several processes do not mix. A full disk is no reason to stop.
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, (json.dumps(record) + "\n").encode())
        finally:
            os.close(descriptor)
    except OSError:
        pass


def report(step, **metrics):
    """Reports numbers of a step: `report(10, loss=2.3, accuracy=0.4)`. Rank 0's are the job's metrics; those of other
    ranks show that they make progress. `step` counts finished steps and continues after a restart. At most 20 calls a
    second."""
    record = {"step": int(step)}
    for name, value in metrics.items():
        number = _number(value)
        if number is not None:
            record[name] = number
    _append(record)


def checkpoint_done(path, step):
    """Reports that a checkpoint of `step` is complete on disk. It counts as progress between two restarts. A path
    of more than 256 bytes is ignored."""
    _append({"checkpoint": os.fspath(path), "step": int(step)})


def should_stop():
    """Whether this process should save its state and end: the job is paused, cancelled, resized, or leaves its node.
    SIGTERM follows after `stop_grace_seconds`. Ranks see it at different times: let one decide and broadcast it."""
    path = os.environ.get("MUSTER_STOP_FILE")
    return bool(path) and os.path.exists(path)


def data_cursor(step, samples_per_step, rank=None, world=None):
    """The samples of this rank in the step after `step` finished ones: a range of positions in the order of the data.
    Each sample is used once, whatever the number of ranks was before. The last ranks get one fewer where ranks do
    not divide it. By default RANK and WORLD_SIZE say which rank this is."""
    rank = int(os.environ.get("RANK", 0)) if rank is None else rank
    world = int(os.environ.get("WORLD_SIZE", 1)) if world is None else world
    begin = step * samples_per_step
    each, more = divmod(samples_per_step, world)
    first = begin + rank * each + min(rank, more)
    return range(first, first + each + (1 if rank < more else 0))


def __getattr__(name):
    """These are imported when they are used: scripts that only report have no gRPC."""
    if name == "track_wandb":
        from muster.wandb import track_wandb
        return track_wandb
    if name not in ("Client", "Error"):
        raise AttributeError(f"module 'muster' has no attribute '{name}'")
    from muster import client
    return getattr(client, name)
