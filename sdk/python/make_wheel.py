"""Makes the wheel of the Python package: a zip file with metadata (packaging.python.org, "Binary distribution format").

make_wheel.py OUT FILE... : the same files give the same bytes.
"""

import base64
import hashlib
import re
import sys
import zipfile

TIME = (2020, 1, 1, 0, 0, 0)


def main(out, files):
    contents = {}
    for path in files:
        with open(path, "rb") as file:
            contents["muster/" + path.rsplit("/", 1)[-1]] = file.read()
    version = re.search(rb'__version__ = "(.*)"', contents["muster/__init__.py"]).group(1).decode()
    info = f"muster-{version}.dist-info"
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: muster\nVersion: {version}\n"
        "Summary: What a training script tells Muster\nRequires-Python: >=3.8\n"
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
    main(sys.argv[1], sys.argv[2:])
