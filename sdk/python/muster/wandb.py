"""Copies a job's metrics to Weights & Biases, through its own package: `pip install muster[client,wandb]`.

    python -m muster.wandb gpt2-tiny-x7f2               # until the job has ended
    wandb sync wandb/offline-run-*-gpt2-tiny-x7f2       # later, from a machine that reaches W&B

    import muster

    with muster.Client() as client:
        muster.track_wandb(client, "gpt2-tiny-x7f2", project="nlp")

Without an API key of W&B it writes files only (offline mode). The run's id is the job's, so a second call goes on where the
first one ended, also when that was killed: each row says how far it is.
"""

import argparse
import glob
import json
import netrc
import os
import struct
import sys
import urllib.parse

_CURSOR = "muster/cursor"  # of a row: the place after it in the coordinator's stream
_BLOCK = 32768  # of a .wandb file, which has the format of LevelDB's log


def track_wandb(client, job, *, project="muster", entity=None, mode=None, dir=None, follow=True):
    """Logs the job's points in the order in which they were reported, and returns its state when it has ended:
    "JOB_STATE_COMPLETED". Without `follow`: what there is now, and the state now.

    The keys are those of `muster metrics -o json`; "step" is the x axis, because steps that a restart repeated are there
    twice. `mode`: "online" or "offline"; by default WANDB_MODE, else online where an API key is known. `dir`: of the
    files; by default WANDB_DIR, else the working folder. Raises `muster.Error`."""
    import wandb

    mode = mode or os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
    dir = os.path.abspath(dir or os.environ.get("WANDB_DIR") or ".")
    shown = client.get(job)["job"]
    online = mode == "online"
    row, cursor = (0, "") if online else _last_row(dir, shown["id"])
    run = wandb.init(project=project, entity=entity, id=shown["id"], name=shown["id"], mode=mode, dir=dir,
                     resume="allow" if online else None, config=_config(shown["spec"]), notes=shown["note"] or None,
                     tags=[label[:64] for label in shown["labels"]] or None,
                     settings=wandb.Settings(console="off", x_disable_stats=True, disable_git=True, save_code=False))
    if online:
        row, cursor = run.step, run.summary.get(_CURSOR) or ""
    run.define_metric("step", hidden=True)
    run.define_metric(_CURSOR, hidden=True)
    run.define_metric("*", step_metric="step")
    code = 1
    try:
        for item in client.watch(shown["id"], metrics=True, follow=follow, cursor=cursor):
            if "metrics" in item:
                run.log({**_values(item["metrics"]), _CURSOR: item["cursor"]}, step=row)
                row += 1
        ended = client.get(shown["id"])["job"]
        run.summary.update({"muster/state": ended["state"], "muster/restarts": ended["restarts"],
                            "muster/generation": ended["generation"]})
        checkpoints = ended["checkpoints"] + ([ended["script_checkpoint"]] if "script_checkpoint" in ended else [])
        if checkpoints:
            run.summary["muster/checkpoint"] = os.path.join(_folder(ended["spec"]), checkpoints[-1]["directory"])
        code = 0 if ended["state"] != "JOB_STATE_FAILED" else 1
        return ended["state"]
    finally:
        run.finish(exit_code=code)


def _has_key():
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _config(spec):
    """The fields that are set. Variables may have secrets, and labels are the run's tags."""
    config = {}
    for key, value in spec.items():
        if isinstance(value, dict):
            value = _config(value)
        if value not in ("", [], {}) and key not in ("env", "labels"):
            config[key] = value
    return config


def _values(point):
    values = {"step": point["step"]}
    for key, value in point.items():
        if isinstance(value, (int, float)):
            values[key] = value
    for key, value in point.get("collective", {}).items():
        if isinstance(value, (int, float)):
            values["collective/" + key] = value
    values.update({"validation/" + named["name"]: named["value"] for named in point["validation"]})
    for named in point["reported"]:
        # Names that begin with _ are W&B's own.
        values["reported/" + named["name"] if named["name"].startswith("_") else named["name"]] = named["value"]
    return values


def _folder(spec):
    return spec["exec"]["workdir"] if "exec" in spec else spec.get("train", {}).get("checkpoint", {}).get("path", "")


def _records(data):
    """The whole records of a .wandb file; the end may be missing."""
    at, parts = 7, b""  # ":W&B", 0xBEE1, a version
    while at + 7 <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0 or at + 7 + length > len(data):
            return
        parts += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def _last_row(dir, run):
    """The number of the next row, and the cursor of the last one, of earlier offline runs with this id."""
    from wandb.proto import wandb_internal_pb2
    number, cursor = 0, ""
    for path in glob.glob(os.path.join(glob.escape(dir), "wandb", f"offline-run-*-{run}", f"run-{run}.wandb")):
        with open(path, "rb") as file:
            data = file.read()
        for record in _records(data):
            history = wandb_internal_pb2.Record.FromString(record).history
            row = {item.key or "/".join(item.nested_key): item.value_json for item in history.item}
            if _CURSOR in row and history.step.num + 1 > number:
                number, cursor = history.step.num + 1, json.loads(row[_CURSOR])
    return number, cursor


def main():
    import muster
    parser = argparse.ArgumentParser(prog="python -m muster.wandb", description="Copies a job's metrics to Weights & "
                                     "Biases until the job has ended; without an API key to files (offline mode).")
    parser.add_argument("job", help="id, or a unique prefix of one")
    parser.add_argument("--project", default="muster", help="of W&B (default: muster)")
    parser.add_argument("--entity", help="user or team of W&B (default: that of the API key)")
    parser.add_argument("--mode", choices=["online", "offline"], help="default: WANDB_MODE, else online with an API key")
    parser.add_argument("--dir", help="folder of the files (default: WANDB_DIR, else this one)")
    parser.add_argument("--no-follow", action="store_true", help="copy what there is now, and end")
    flags = parser.parse_args()
    try:
        with muster.Client() as client:
            state = track_wandb(client, flags.job, project=flags.project, entity=flags.entity, mode=flags.mode,
                                dir=flags.dir, follow=not flags.no_follow)
    except muster.Error as error:
        sys.exit(f"muster.wandb: {error}")
    print(state.removeprefix("JOB_STATE_").lower())


if __name__ == "__main__":
    main()
