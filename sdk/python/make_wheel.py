"""Makes the wheel of the Python package: a zip file with metadata (packaging.python.org, "Binary distribution format").

make_wheel.py OUT VERSION_H GENERATED FILE... : the same files give the same bytes. GENERATED is the folder in which protoc
made proto/*.py, which become muster.proto.
"""

import base64
import glob
import hashlib
import re
import sys
import zipfile

TIME = (2020, 1, 1, 0, 0, 0)


def main(out, version_h, generated, files):
    contents = {}
    for path in files:
        with open(path, "rb") as file:
            contents["muster/" + path.rsplit("/", 1)[-1]] = file.read()
    contents["muster/proto/__init__.py"] = b""
    for path in glob.glob(f"{generated}/proto/*.py"):
        with open(path, "rb") as file:
            # protoc takes the path of a .proto file for its package.
            contents["muster/proto/" + path.rsplit("/", 1)[-1]] = re.sub(
                rb"^from proto import ", b"from muster.proto import ", file.read(), flags=re.M)
    with open(version_h) as file:
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
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
