"""Makes the wheel of the Python package: a zip file with metadata (packaging.python.org, "Binary distribution format").

make_wheel.py OUT, in the root of the tree: the same tree gives the same bytes. protoc makes muster.proto.
"""

import base64
import glob
import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile

TIME = (2020, 1, 1, 0, 0, 0)
SOURCES = ["sdk/python/muster/__init__.py", "sdk/python/muster/client.py", "sdk/python/muster/wandb.py"]
VERSION_H = "common/version.h"
# The messages and services of a user's calls, with what they import.
PROTOS = ["job", "jobs", "jobs_service", "options", "partition", "spec", "trace", "units"]


def generate(folder):
    subprocess.run(["protoc", "-I.", f"--python_out={folder}", f"--grpc_python_out={folder}",
                    "--plugin=protoc-gen-grpc_python=/usr/bin/grpc_python_plugin"] +
                   [f"proto/{name}.proto" for name in PROTOS], check=True)


def main(out):
    contents = {}
    for path in SOURCES:
        with open(path, "rb") as file:
            contents["muster/" + path.rsplit("/", 1)[-1]] = file.read()
    contents["muster/proto/__init__.py"] = b""
    with tempfile.TemporaryDirectory() as generated:
        generate(generated)
        for path in glob.glob(f"{generated}/proto/*.py"):
            with open(path, "rb") as file:
                # protoc takes the path of a .proto file for its package.
                contents["muster/proto/" + path.rsplit("/", 1)[-1]] = re.sub(
                    rb"^from proto import ", b"from muster.proto import ", file.read(), flags=re.M)
    with open(VERSION_H) as file:
        header = file.read()
    known = {name: re.search(rf" {name}(?:\[\])? = (.*);", header).group(1)
             for name in ("kVersion", "kProtocol", "kOldestProtocol")}
    contents["muster/versions.py"] = (f"VERSION = {known['kVersion']}\nPROTOCOL = {known['kProtocol']}\n"
                                      f"OLDEST_PROTOCOL = {known['kOldestProtocol']}\n").encode()
    version = re.search(rb'__version__ = "(.*)"', contents["muster/__init__.py"]).group(1).decode()
    info = f"muster-{version}.dist-info"
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: muster\nVersion: {version}\n"
        "Summary: What a training script tells Muster, and a client of its coordinator\nRequires-Python: >=3.10\n"
        "Provides-Extra: client\nRequires-Dist: grpcio>=1.51; extra == \"client\"\n"
        "Requires-Dist: protobuf>=4.21; extra == \"client\"\n"
        "Provides-Extra: wandb\nRequires-Dist: wandb; extra == \"wandb\"\n"
        "Provides-Extra: pandas\nRequires-Dist: pandas; extra == \"pandas\"\n"
    ).encode()
    contents[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: muster\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = ""
    for name, data in sorted(contents.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)


if __name__ == "__main__":
    main(sys.argv[1])
