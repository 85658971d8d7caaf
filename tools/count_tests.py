#!/usr/bin/env python3
"""Counts the test cases of a `bazel test` run from its build events: prints what failed, then `N passed, N failed`.

usage: count_tests.py EVENTS.json       exit status 1 if a case failed or none ran

A target without a usable XML log (it did not build, crashed or timed out) counts as one failed case.
"""
import json
import sys
import urllib.parse
import xml.etree.ElementTree as ET


def cases_of(path):
    """(passed, [names of failed cases]) of one XML log; None if it cannot be read."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return None
    passed, failed = 0, []
    for case in root.iter("testcase"):
        if case.get("status") == "notrun":
            continue
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append("%s.%s" % (case.get("classname", ""), case.get("name", "")))
        else:
            passed += 1
    return passed, failed


def main():
    wanted, status, logs = set(), {}, {}
    with open(sys.argv[1], encoding="utf-8") as events:
        for line in events:
            event = json.loads(line)
            ident = event.get("id", {})
            if "targetConfigured" in ident and "configured" in event:
                if event["configured"].get("targetKind", "").endswith("_test rule"):
                    wanted.add(ident["targetConfigured"]["label"])
            if "testResult" in ident and "testResult" in event:
                label = ident["testResult"]["label"]
                for output in event["testResult"].get("testActionOutput", []):
                    if output.get("name") == "test.xml":
                        logs.setdefault(label, {})[ident["testResult"].get("shard", 1)] = urllib.parse.unquote(
                            output["uri"][len("file://"):])
            if "testSummary" in ident and "testSummary" in event:
                status[ident["testSummary"]["label"]] = event["testSummary"]["overallStatus"]

    passed, failed = 0, 0
    for label in sorted(wanted):
        if label not in status:
            continue  # excluded by tag, or incompatible with this configuration
        shards = [cases_of(log) for log in logs.get(label, {}).values()]
        counts = None
        if shards and None not in shards:
            counts = sum(s[0] for s in shards), [name for s in shards for name in s[1]]
        good = status[label] in ("PASSED", "FLAKY")
        names = counts[1] if counts else []
        if not good and not names:
            names = ["the whole target: " + status[label]]
        for name in names:
            print("FAILED %s %s" % (label, name))
        passed += counts[0] if counts else (1 if good else 0)
        failed += len(names)
    for label in sorted(l for l in wanted - set(status) if l in logs):
        print("FAILED %s has no summary" % label)
        failed += 1
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


sys.exit(main())
