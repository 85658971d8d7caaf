"""Tests of muster.Client against a coordinator with a worker, beside `muster`, which is in PATH:
client_test.py WHEEL FOLDER ADDRESS TOKEN_FILE CA. MUSTER_ADDRESS is the coordinator's socket."""

import datetime
import json
import os
import shutil
import subprocess
import sys
import unittest

WHEEL, FOLDER, ADDRESS, TOKEN_FILE, CA = [sys.argv.pop(1) for _ in range(5)]
sys.path.insert(0, WHEEL)
import muster  # noqa: E402

SCRIPT = """
for step in 1 2 3; do echo "{\\"step\\": $step, \\"loss\\": 0.$step, \\"accuracy\\": 0.5}" >> $MUSTER_REPORT_FILE; done
echo done in $PWD with $WHAT
"""


def cli(*arguments):
    return json.loads(subprocess.run(["muster", *arguments, "-o", "json"], check=True, capture_output=True).stdout)


class ClientTest(unittest.TestCase):
    def test_runs_watches_and_measures(self):
        with muster.Client() as client:
            job = client.run(["sh", "-c", SCRIPT], name="three", workdir=FOLDER, env={"WHAT": "a b"})
            self.assertEqual(client.wait(job["id"]), "JOB_STATE_COMPLETED")
            shown = cli("describe", job["id"])["job"]
            got = client.get(job["id"])["job"]
            self.assertEqual(got["id"], shown["id"])
            self.assertEqual(got["spec"]["exec"]["command"], shown["spec"]["command"])
            self.assertEqual(got["spec"]["exec"]["command"][0], shutil.which("sh"))
            age = datetime.datetime.now(datetime.timezone.utc) - got["submitted"]
            self.assertLess(abs(age), datetime.timedelta(minutes=10))
            self.assertIn(job["id"], [j["id"] for j in client.list(all=True)])
            self.assertNotIn(job["id"], [j["id"] for j in client.list()])
            text = "".join(item["log"]["text"] for item in client.watch(job["id"], logs=True) if "log" in item)
            self.assertIn(f"done in {os.path.realpath(FOLDER)} with a b", text)
            kinds = [item["event"]["kind"] for item in client.watch(job["id"], events=True) if "event" in item]
            self.assertIn("generation.ended", kinds)
            points = client.metrics(job["id"])
            self.assertEqual([(p["step"], p["loss"], p["accuracy"]) for p in points],
                             [(1, 0.1, 0.5), (2, 0.2, 0.5), (3, 0.3, 0.5)])
            frame = client.metrics_frame(job["id"])
            self.assertEqual(frame.loc[2, "loss"], 0.2)
            self.assertEqual(frame.index.name, "step")
            self.assertEqual([n["id"] for n in client.nodes()], [n["id"] for n in cli("nodes")])

    def test_cancels(self):
        with muster.Client() as client:
            job = client.run(["sleep", "600"])
            self.assertEqual(job["spec"]["name"], "sleep")
            client.cancel(job["id"])
            self.assertEqual(client.wait(job["id"]), "JOB_STATE_CANCELLED")
            self.assertEqual(client.metrics(job["id"]), [])
            self.assertEqual(len(client.metrics_frame(job["id"])), 0)

    def test_runs_in_an_image(self):
        with muster.Client() as client:
            job = client.run(["python3", "train.py"], image="localhost/nowhere")
            self.assertEqual(job["spec"]["exec"]["image"], "localhost/nowhere")
            self.assertEqual(job["spec"]["exec"]["command"][0], "python3", "looked up in the image, not here")
            client.cancel(job["id"])
            client.wait(job["id"])

    def test_a_retry_gives_the_same_job(self):
        with muster.Client() as client:
            spec = {"name": "once", "exec": {"command": ["/bin/true"]}}
            first = client.submit(spec, request_id="r1")
            self.assertEqual(client.submit(spec, request_id="r1")["id"], first["id"])
            self.assertNotEqual(client.submit(spec)["id"], first["id"])

    def test_errors(self):
        with muster.Client() as client:
            with self.assertRaises(muster.Error) as raised:
                client.get("no-such-job")
            self.assertEqual(raised.exception.code, "NOT_FOUND")
            with self.assertRaises(muster.Error) as raised:
                client.submit({"name": "Bad Name", "exec": {"command": [""]}})
            self.assertEqual(raised.exception.code, "INVALID_ARGUMENT")
            self.assertIn("name", [e["path"] for e in raised.exception.spec_errors])
            with self.assertRaisesRegex(muster.Error, "not a JobSpec"):
                client.submit({"steps_": 1})
            with self.assertRaisesRegex(muster.Error, "must be a list"):
                client.run("python train.py")
        with self.assertRaises(muster.Error) as raised:
            muster.Client(f"unix:{FOLDER}/no.sock", timeout=2).list()
        self.assertEqual(raised.exception.code, "UNAVAILABLE")

    def test_tls_by_token_by_authority_and_by_the_context_file(self):
        with open(TOKEN_FILE) as file:
            token = file.read().strip()
        for arguments in ({"token": token}, {"token": token, "ca": CA}):
            with muster.Client(ADDRESS, **arguments) as client:
                job = client.submit({"name": "by-tls", "exec": {"command": ["/bin/true"]}})
                self.assertEqual(client.get(job["id"])["job"]["owner"], "ann")
        config = os.path.join(FOLDER, "other-config")
        os.makedirs(os.path.join(config, "muster"), exist_ok=True)
        context = os.path.join(config, "muster", "context.yaml")
        with open(context, "w") as file:
            file.write(f"# ours\naddress: {ADDRESS}\ntoken_file: \"{TOKEN_FILE}\"   # of ann\ntimeout: 1m30s\n")
        environment = dict(os.environ, XDG_CONFIG_HOME=config)
        del environment["MUSTER_ADDRESS"]
        with unittest.mock.patch.dict(os.environ, environment, clear=True):
            with muster.Client() as client:
                self.assertEqual(client.address, ADDRESS)
                self.assertIn("by-tls", [j["spec"]["name"] for j in client.list(all=True)])
            with open(context, "a") as file:
                file.write("colour: blue\n")
            with self.assertRaisesRegex(muster.Error, "context.yaml:5"):
                muster.Client()

    def test_another_coordinator_is_refused(self):
        with self.assertRaises(muster.Error) as raised:
            muster.Client(ADDRESS, "muster1." + "0" * 64 + ".12345678." + "a" * 32)
        self.assertEqual(raised.exception.code, "PERMISSION_DENIED")
        with open(TOKEN_FILE) as file:
            token = file.read().strip()
        wrong = token[:-4] + "zzzz"
        with self.assertRaises(muster.Error) as raised:
            muster.Client(ADDRESS, wrong).list()
        self.assertEqual(raised.exception.code, "UNAUTHENTICATED")
        for address in ("gpu-head:7070", "127.example.org:7070", "[fe80::1]:7070"):
            with self.assertRaises(muster.Error) as raised:
                muster.Client(address, "plain-token")
            self.assertEqual(raised.exception.code, "FAILED_PRECONDITION", address)
        for address in ("localhost:1", "127.0.0.2:1", "[::1]:1"):
            muster.Client(address, "plain-token").close()

    def test_what_cannot_be_parsed(self):
        for address in ("gpu-head:http", "gpu-head:", "127.0.0.1:70707"):
            with self.assertRaisesRegex(muster.Error, "is not a port"):
                muster.Client(address, "plain-token")
        for token in ("junk\r", "two\nlines", "gr\u00fc\u00df"):
            with self.assertRaisesRegex(muster.Error, "this is not a token"):
                muster.Client("127.0.0.1:1", token)
        binary = os.path.join(FOLDER, "binary-token")
        with open(binary, "wb") as file:
            file.write(b"\x7fELF\xff")
        with unittest.mock.patch.dict(os.environ, {"MUSTER_TOKEN_FILE": binary}):
            with self.assertRaisesRegex(muster.Error, f"{binary}: this is not a token"):
                muster.Client("127.0.0.1:1")
        for timeout in ("1.2.3", "..s", "soon"):
            with unittest.mock.patch.dict(os.environ, {"MUSTER_TIMEOUT": timeout}):
                with self.assertRaisesRegex(muster.Error, "invalid duration"):
                    muster.Client()


if __name__ == "__main__":
    import unittest.mock
    unittest.main()
