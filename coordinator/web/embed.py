"""Writes a C++ file with the given files as constants: embed.py OUT FILE... (see assets.h)."""

import hashlib
import os
import sys

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    "": "text/plain; charset=utf-8",
}


def literal(data):
    """Octal escapes have three digits at most, so no byte runs into the next one."""
    lines = []
    for at in range(0, len(data), 60):
        lines.append('"%s"' % "".join(
            chr(b) if 32 <= b < 127 and b not in b'"\\?' else "\\%03o" % b for b in data[at:at + 60]))
    return "\n".join(lines) or '""'


def main():
    out, files = sys.argv[1], sorted(sys.argv[2:], key=os.path.basename)
    text = ['#include "coordinator/web/assets.h"', "", "namespace muster::web {", "namespace {"]
    rows = []
    for number, path in enumerate(files):
        with open(path, "rb") as file:
            data = file.read()
        name = os.path.basename(path)
        text.append("constexpr char kAsset%d[] =\n%s;" % (number, literal(data)))
        rows.append('    {"%s", "%s", "\\"%s\\"", {kAsset%d, %d}},' % (
            name, TYPES[os.path.splitext(name)[1]], hashlib.sha256(data).hexdigest()[:24], number, len(data)))
    text += ["constexpr Asset kAssets[] = {"] + rows + ["};", "}  // namespace", "",
             "const Asset* FindAsset(std::string_view name) {",
             "  for (const Asset& asset : kAssets) {",
             "    if (asset.name == name) return &asset;",
             "  }",
             "  return nullptr;",
             "}", "", "}  // namespace muster::web", ""]
    with open(out, "w") as file:
        file.write("\n".join(text))


main()
