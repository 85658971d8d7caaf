"""Compares the offline runs that `python -m muster.wandb` wrote with what the command line says.

check_wandb.py FOLDER JOB METRICS: METRICS is a JSON file, `muster metrics -o json`. Reads the rows with W&B's own messages.
Prints the number of rows and of files; exit code 1: the rows are not the points, in order and once each.
"""

import glob
import json
import struct
import sys

from wandb.proto import wandb_internal_pb2


def records(data):
    """LevelDB's log format (doc/log_format.md there), after a header of 7 bytes."""
    block, at, whole = 32768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0 or at + 7 + length > len(data):
            return
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def main(folder, job, metrics_file):
    with open(metrics_file) as file:
        points = json.load(file)
    rows, config, run_ids = {}, {}, set()
    files = sorted(glob.glob(f"{folder}/wandb/offline-run-*/*.wandb"))
    for path in files:
        with open(path, "rb") as file:
            data = file.read()
        for record in records(data):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run_ids.add(record.run.run_id)
                config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
            if kind != "history":
                continue
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                      for item in record.history.item}
            assert record.history.step.num not in rows, f"row {record.history.step.num} is there twice"
            rows[record.history.step.num] = values
    assert run_ids == {job}, run_ids
    assert config["name"] == job.rsplit("-", 1)[0], config
    assert "secret value" not in json.dumps(config), config
    assert sorted(rows) == list(range(len(points))), f"{len(rows)} rows of {len(points)}"
    for number, point in enumerate(points):
        expected = {key: value for key, value in point.items() if isinstance(value, (int, float))}
        expected.update({"validation/" + named["name"]: named["value"] for named in point["validation"]})
        expected.update({named["name"]: named["value"] for named in point["reported"]})
        row = {key: value for key, value in rows[number].items() if not key.startswith("_") and key != "muster/cursor"}
        assert row == expected, (row, expected)
    print(len(rows), len(files))


if __name__ == "__main__":
    main(*sys.argv[1:4])
