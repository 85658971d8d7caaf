"""Compares a job's run in an MLflow server, read over REST, with what the command line says of the job.

check_mlflow.py URL EXPERIMENT FACTS: FACTS is a JSON file {"job": of `muster describe -o json`, "metrics": `muster metrics -o json`,
"state": "FINISHED", "tags": {...}}. Exit code 0: all is there, once. Else the differences are on stdout.
"""

import collections
import datetime
import json
import posixpath
import re
import sys
import urllib.error
import urllib.parse
import urllib.request

NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf"), "nan": float("nan"),
           "inf": float("inf"), "-inf": float("-inf"), None: float("nan")}  # JSON of the command line has null


def call(url, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def runs_of(url, experiment, job):
    by_name = "experiments/get-by-name?" + urllib.parse.urlencode({"experiment_name": experiment})
    identity = call(url, by_name)["experiment"]["experiment_id"]
    found = call(url, "runs/search", {"experiment_ids": [identity], "max_results": 100, "run_view_type": "ACTIVE_ONLY"})
    runs = found.get("runs", [])
    return [run for run in runs if {"key": "muster.job", "value": job} in run["data"].get("tags", [])]


def history(url, run, key):
    points, page = [], ""
    while True:
        query = {"run_id": run, "metric_key": key, "max_results": 1000}
        if page:
            query["page_token"] = page
        reply = call(url, "metrics/get-history?" + urllib.parse.urlencode(query))
        points += reply.get("metrics", [])
        page = reply.get("next_page_token", "")
        if not page:
            return points


def number(value):
    """One text for one double, also for NaN."""
    return repr(float(NUMBERS.get(value, value)))


def milliseconds(text):
    whole, _, fraction = text.rstrip("Z").partition(".")
    time = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.timezone.utc)
    return int(time.timestamp()) * 1000 + int((fraction + "000")[:3])


def expected_points(metrics):
    points = []
    for point in metrics:
        step, time = int(point["step"]), milliseconds(point["time"])
        for key, value in point.items():
            if key not in ("step", "time") and not isinstance(value, (list, dict)):
                points.append((key, step, time, number(value)))
        points += [("validation/" + named["name"], step, time, number(named["value"])) for named in point["validation"]]
        points += [(named["name"], step, time, number(named["value"])) for named in point["reported"]]
    return points


def is_key(name):
    return posixpath.normpath(name) == name and not name.startswith("..")


def flatten(tree, prefix, into):
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict):
            flatten(value, path, into)
        else:
            into[path] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def main(url, experiment, facts_file):
    with open(facts_file) as file:
        facts = json.load(file)
    job = facts["job"]
    wrong = []
    runs = runs_of(url, experiment, job["id"])
    if len(runs) != 1:
        return [f"{len(runs)} runs of {job['id']}"]
    run = runs[0]
    if run["info"]["status"] != facts["state"]:
        wrong.append(f"the status is {run['info']['status']}")
    if run["info"]["run_name"] != job["id"]:
        wrong.append(f"the name is {run['info']['run_name']}")

    points = []
    for metric in run["data"].get("metrics", []):
        key = metric["key"]
        points += [(key, int(p.get("step", 0)), int(p["timestamp"]), number(p["value"]))
                   for p in history(url, run["info"]["run_id"], key)]
    expected = expected_points(facts["metrics"])
    # A name that MLflow takes for a path has another one there, which ends with a part of its hash.
    renamed = collections.Counter(p[1:] for p in expected if not is_key(p[0]))
    found_renamed = collections.Counter(p[1:] for p in points if re.search("-[0-9a-f]{8}$", p[0]))
    if renamed != found_renamed:
        wrong.append(f"renamed metrics: {sum(renamed.values())} expected, {sum(found_renamed.values())} found")
    left = collections.Counter(p for p in expected if is_key(p[0]))
    left.subtract(collections.Counter(p for p in points if not re.search("-[0-9a-f]{8}$", p[0])))
    missing = sorted(p for p, n in left.items() if n > 0)
    extra = sorted(p for p, n in left.items() if n < 0)
    if missing:
        wrong.append(f"{len(missing)} of {len(expected)} values are missing, such as {missing[:3]}")
    if extra:
        wrong.append(f"{len(extra)} values are too many, such as {extra[:3]}")
    if len(expected) < facts["at_least"]:
        wrong.append(f"only {len(expected)} values to compare")

    params = {entry["key"]: entry["value"] for entry in run["data"].get("params", [])}
    wanted = {}
    spec = dict(job["spec"])
    spec.pop("labels", None)
    if "env" in spec:
        spec["env"] = [variable["name"] for variable in spec["env"]]
    flatten(spec, "", wanted)
    if params != wanted:
        wrong.append(f"parameters: {set(wanted.items()) ^ set(params.items())}")
    tags = {entry["key"]: entry["value"] for entry in run["data"].get("tags", [])}
    for key, value in facts["tags"].items():
        if tags.get(key) != value:
            wrong.append(f"the tag {key} is {tags.get(key)!r}, not {value!r}")
    if "secret value" in json.dumps(run):
        wrong.append("a variable's value was sent")
    return wrong


if __name__ == "__main__":
    try:
        differences = main(*sys.argv[1:4])
    except (OSError, KeyError) as error:  # not there yet, or away
        differences = [repr(error)]
    print("\n".join(differences))
    sys.exit(1 if differences else 0)
