#!/usr/bin/env python3
"""Types the blocks of pages into shells of another machine, for tools/clean_machine.sh. Python's standard library only.

It reads a page as blocks.h says, but for what the pages of a clean machine do not have: a mark or a language that it
does not know is an error. It types what `installs packages` and `needs root`, too. commands_test compares the readers.

    type_pages.py --list PAGE         its blocks, as commands_test compares them
    type_pages.py --shell COMMAND [--second COMMAND] [--has NAME=VALUE]... [--counts FILE] PAGE...
        COMMAND: words before `bash`, such as those that enter the machine, and the second one
        NAME=VALUE: what a reader would put something else for, and the machine has as the page shows it
        FILE: gets a line "TYPED FAILED NOT_TYPED" more

Prints each command, its output and its time. Exit code 1: a command failed, or was not typed because of one.
"""
import argparse
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time

TO_READ = {"text", "json", "python", "cpp", "mermaid"}
TYPED_HERE = {"installs packages", "needs root"}
SET_UP_SECONDS = 3 * 3600  # what installs, builds and tests
COMMAND_SECONDS = 1800


def blocks_of(path):
    """Dicts with line, text, typed_as, not_typed, typed_with, second_machine, save_as; as text without indentation."""
    blocks, notes, block = [], {}, None

    def mistaken(number, what):
        sys.exit(f"type_pages: {path}:{number}: {what}; see {os.path.basename(__file__)} and blocks.h")

    for number, line in enumerate(open(path, encoding="utf-8").read().split("\n"), 1):
        bare = line.lstrip()
        if block is not None:
            shown = line[block["indentation"]:]
            if shown != "```":
                block["text"] += shown + "\n"
                continue
            del block["indentation"]
            language, first = block.pop("language"), block["text"].split("\n")[0]
            if language == "yaml" and first.startswith("# ") and first.endswith(".yaml"):
                block["save_as"] = first[2:]
            elif language not in TO_READ | {"sh"}:
                mistaken(block["line"], f"a block of {language or 'no language'} that no reader here types")
            if language not in TO_READ:
                blocks.append(block)
            block, notes = None, {}
        elif bare.startswith("<!-- "):
            comment = bare[5:].removesuffix(" -->")
            name, _, value = comment.partition(": ")
            if comment == "on the second machine":
                notes["second_machine"] = True
            elif name == "not typed":
                notes["not_typed"] = value.split(";")[0]
            elif name == "typed with":
                notes["typed_with"] = value.split(" ")
            elif name == "typed as":
                notes["typed_as"] = value + "\n"
            elif name in ("first", "then", "beside", "saved as") or comment in ("typed in a job", "output varies"):
                mistaken(number, f"cannot type what is marked \"{comment}\"")
        elif bare.startswith("```"):
            block = {"line": number, "text": "", "typed_as": "", "not_typed": "", "typed_with": [],
                     "second_machine": False, "save_as": "", "language": bare[3:],
                     "indentation": len(line) - len(bare), **notes}
        elif bare:
            notes = {}
    if block is not None:
        mistaken(block["line"], "a block without an end")
    return blocks


def commands_of(text):
    """Whole commands, as a shell would take them line by line."""
    commands, lines = [], ""
    for line in text.splitlines(keepends=True):
        lines += line
        read = subprocess.run(["bash", "-n"], input=lines, capture_output=True, text=True)
        if read.returncode != 0 or read.stderr or lines.endswith("\\\n"):
            continue
        if not all(part.strip() == "" or part.lstrip().startswith("#") for part in lines.split("\n")):
            commands.append(lines.rstrip("\n"))
        lines = ""
    return commands + ([lines.rstrip("\n")] if lines.strip() else [])


class Shell:
    """A shell that stays: what a command exports, and where it goes, is there for the next one."""

    def __init__(self, prefix):
        status, self._status_end = os.pipe()
        self._status = status
        self._bash = subprocess.Popen(shlex.split(prefix) + ["bash", "--norc"], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, pass_fds=[self._status_end],
                                      start_new_session=True)
        os.set_blocking(self._bash.stdout.fileno(), False)
        # A command within a loop or a pipeline that fails is a failure, too.
        self._send("set -o pipefail -o errtrace; trap 'type_pages_failed=$?' ERR\n")

    def _send(self, text):
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()

    def _show(self):
        """Whether there was more to show."""
        try:
            out = os.read(self._bash.stdout.fileno(), 65536)
        except BlockingIOError:
            return False
        sys.stdout.buffer.write(out)
        sys.stdout.buffer.flush()
        return bool(out)

    def type(self, command, seconds):
        """The exit code; None: it did not end in time, or ended the shell, which is of no more use."""
        end = self._status_end
        self._send(f"type_pages_failed=0; eval {shlex.quote(command)} </dev/null {end}>&-; "
                   f"echo $(( $? ? $? : type_pages_failed )) >&{end}\n")
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(self._bash.stdout, selectors.EVENT_READ)
            ready.register(self._status, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                if any(key.fileobj == self._status for key, _ in ready.select(1)):
                    while self._show():
                        pass
                    return int(os.read(self._status, 64))
                ended = self._bash.poll() is not None
                if not self._show() and ended:
                    return None
        return None

    def end(self):
        try:
            os.killpg(self._bash.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._bash.wait()


def say(text):
    print(text, flush=True)


class Typist:
    def __init__(self, shells, has):
        self._shells, self._has = shells, has
        self.typed = self.failed = self.not_typed = 0
        self._lost = ""  # the command that ended a shell

    def _skip(self, where, commands, why):
        for command in commands:
            self.not_typed += 1
            say(f"not typed: {where}: {why}: {command}")

    def page(self, path, name):
        for block in blocks_of(path):
            where = f"{name}:{block['line']}"
            text = block["typed_as"] or block["text"]
            if block["save_as"]:
                text = f"cat >{shlex.quote(block['save_as'])} <<'END_OF_FILE'\n{text}END_OF_FILE\n"
            commands = commands_of(text)
            for given in block["typed_with"]:
                if given not in self._has:
                    sys.exit(f"type_pages: {where}: the machine has no {given}: name it by --has")
            if block["not_typed"] and block["not_typed"] not in TYPED_HERE:
                self._skip(where, commands, block["not_typed"])
                continue
            if block["typed_as"]:
                say(f"typed in place of {where}: {block['text'].strip()}")
            for command in commands:
                self._type(where, command, block)

    def _type(self, where, command, block):
        if self._lost:
            self.failed += 1
            self._skip(where, [command], f"the shell ended at {self._lost}")
            return
        second = block["second_machine"]
        say(f"\n[{where}{', second machine' if second else ''}] $ {command}")
        began = time.monotonic()
        code = self._shells[second].type(command, SET_UP_SECONDS if block["not_typed"] else COMMAND_SECONDS)
        took = time.monotonic() - began
        self.typed += 1
        if code != 0:
            self.failed += 1
        if code is None:
            self._lost = f"{where} after {took:.0f} s"
        ended = "" if code == 0 else ", FAILED: no end" if code is None else f", FAILED: exit code {code}"
        say(f"-- {took:.1f} s{ended}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="+", metavar="PAGE")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--shell")
    parser.add_argument("--second")
    parser.add_argument("--has", action="append", default=[])
    parser.add_argument("--counts")
    parser.add_argument("--root", default=".", help="the folder that the pages' names are relative to")
    options = parser.parse_args()
    if options.list:
        for block in blocks_of(os.path.join(options.root, options.pages[0])):
            print(block["line"], "second" if block["second_machine"] else "first", block["save_as"], block["not_typed"],
                  " ".join(block["typed_with"]), sep="|")
            print(block["typed_as"] or block["text"], end="")
        return 0
    shells = {False: Shell(options.shell)}
    if options.second:
        shells[True] = Shell(options.second)
    typist = Typist(shells, options.has)
    try:
        for page in options.pages:
            typist.page(os.path.join(options.root, page), page)
    except SystemExit:
        typist.failed += 1
        raise
    finally:
        for shell in shells.values():
            shell.end()
        if options.counts:
            with open(options.counts, "a", encoding="utf-8") as counts:
                counts.write(f"{typist.typed} {typist.failed} {typist.not_typed}\n")
    return 1 if typist.failed else 0


if __name__ == "__main__":
    sys.exit(main())
