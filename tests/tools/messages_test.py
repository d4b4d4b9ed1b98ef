"""What commands and the Python package say when they refuse or warn, compared with messages.txt.

  messages_test.py [SUITE]       compares
  messages_test.py --update      writes messages.txt anew; read its difference

Other tests assert the kind of an error and the thing that it names, so that its wording can be
mended in the program and here alone. A new case is a "$ " line in messages.txt, and --update adds
the rest. A command runs in a folder with the files of message_files.py; NEW is a folder that does
not exist. It must not train. Expressions of "python: " are evaluated by message_package.py, in
their order.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch. The suite Package needs
the Python package on PYTHONPATH; without it, --update leaves its cases as they are.
"""

import collections
import concurrent.futures
import importlib.util
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import message_files
from fuzz_inputs import copy_template, make_template
from sluice_program import HAS_ENGINE, SLUICE

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "messages.txt"
UPDATE = "SLUICE=build/bin/sluice SLUICE_HAS_ENGINE=1 python3 tests/tools/messages_test.py --update"
PACKAGE = "python: "
# The commands of a program that was built without LibTorch, and say the same there.
OF_FILES = ("copy", "data", "diff", "doctor", "export", "import", "ls", "metrics", "prepare",
            "report", "scrub", "watch")
# Variables of launchers, the hub and terminals, which change what is said.
FOREIGN = re.compile(r"\A(SLURM|SLUICE_|PMI|OMPI|MPI|NCCL|HF_|HUGGING|RANK|WORLD_SIZE|LOCAL_|"
                     r"MASTER_|COLUMNS|NO_COLOR|TERM)")


def golden():
    """{command: its block} of messages.txt."""
    parts = re.split(r"^\n?(?=\$ )", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {part.split("\n", 1)[0][2:]: part for part in parts if part}


def run(words, folder, more=None):
    kept = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
    environment = {**kept, "HF_HUB_OFFLINE": "1", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "",
                   "XDG_CACHE_HOME": str(folder.parent / "cache"), **(more or {})}
    return subprocess.run([SLUICE, *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False, timeout=240)


def said(result):
    """Warnings, and what follows the first "sluice: "; if there is neither, standard output."""
    told, refused = [], False
    for line in result.stderr.splitlines():
        refused |= re.match(r"(sluice( \w+)?|tools/\w+): ", line) is not None
        if refused or re.match(r"\[[\d:]+ warning\]", line):
            told.append(line)
    if told:
        return told
    shown = result.stdout.splitlines()
    first = [at for at, line in enumerate(shown) if line.startswith("ignored, ")]  # sluice config
    return shown[first[0]:] if first else shown if result.returncode else []


def neutral(text, folder):
    """Without what differs between machines."""
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"\bnew-\d+", "NEW", text)
    return re.sub(r"\[[\d:]+ warning\]", "[warning]", text)


def of_commands(commands):
    """{command: its block now}."""
    def one(numbered):
        number, command = numbered
        words = [f"new-{number}" if word == "NEW" else word for word in shlex.split(command)]
        at = words.index("sluice")
        result = run(words[at + 1:], work, dict(word.split("=", 1) for word in words[:at]))
        lines = [f"$ {command}", f"exit code {result.returncode}", *said(result), ""]
        return command, neutral("\n".join(lines), work)

    def in_one_folder(group):
        return [one(numbered) for numbered in group]
    groups = collections.defaultdict(list)  # a run's folder is locked while a command uses it
    for number, command in enumerate(commands):
        out = re.search(r" --out (?!NEW)(\S+)", command)
        groups[out[1] if out else number].append((number, command))
    with tempfile.TemporaryDirectory(prefix="sluice-messages-", dir=os.getcwd()) as folder:
        template, work = Path(folder).resolve() / "template", Path(folder).resolve() / "work"
        make_template(template, run, False)
        copy_template(template, work)
        message_files.make(work)
        with concurrent.futures.ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            found = dict(itertools.chain(*pool.map(in_one_folder, groups.values())))
    return {command: found[command] for command in commands}


def of_package(commands):
    """The same for lines of the Python package."""
    done = subprocess.run([sys.executable, "-B", HERE / "message_package.py"], check=True,
                          text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
                          input="\n".join(command[len(PACKAGE):] for command in commands))
    return {command: f"$ {command}\n{message}\n"
            for command, message in zip(commands, json.loads(done.stdout))}


def is_known_here(command):
    words = [word for word in command.split(" ") if "=" not in word]
    return HAS_ENGINE or len(words) > 1 and words[1] in OF_FILES


class Compared(unittest.TestCase):
    def compare(self, blocks, expected):
        for command, now in blocks.items():
            with self.subTest(command=command):
                silent = 1 if command.startswith(PACKAGE) else 2  # lines: the command, the exit code
                self.assertGreater(now.count("\n"), silent, f"{command} says nothing")
                if now != expected[command]:
                    self.fail(f"\nmessages.txt:\n{expected[command]}\nnow:\n{now}\n"
                              f"If that is meant: {UPDATE}")


class Commands(Compared):
    def test_say_what_they_said(self):
        expected = {command: block for command, block in golden().items()
                    if not command.startswith(PACKAGE) and is_known_here(command)}
        self.compare(of_commands(expected), expected)


class Package(Compared):
    def test_says_what_it_said(self):
        expected = {command: block for command, block in golden().items()
                    if command.startswith(PACKAGE)}
        self.compare(of_package(expected), expected)


def update():
    if not HAS_ENGINE:
        raise SystemExit("SLUICE_HAS_ENGINE=1 is missing: messages.txt is of a program with LibTorch")
    blocks = golden()
    package = [command for command in blocks if command.startswith(PACKAGE)]
    commands = of_commands(sorted(blocks.keys() - set(package)))
    has_package = all(importlib.util.find_spec(name) for name in ("torch", "sluice"))
    of_python = of_package(package) if has_package else {name: blocks[name] for name in package}
    GOLDEN.write_text("\n".join([*commands.values(), *of_python.values()]), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        update()
    else:
        unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
