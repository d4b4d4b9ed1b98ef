"""What a built program says of itself: its commands, their options, and the keys of a run file."""

import re
import shlex
import subprocess
from collections import namedtuple

from toolbox import ROOT, Failure

Option = namedtuple("Option", "names value rules meaning")
Section = namedtuple("Section", "title options")
# lines: what stands after the options, examples and remarks.
Help = namedtuple("Help", "summary usage sections lines")
# status: honoured, ignored, refused, the same as, or the old name of (the last two: another key, in
# values); notes: the lines after the meaning.
Key = namedtuple("Key", "path status values default source meaning notes")

_COLUMN = 26  # where meanings begin
_LONG_OPTION = re.compile(r"--[A-Za-z][\w-]*")
_RULES = re.compile(r"\s*\b(Excludes|Needs): ((?:-{0,2}[A-Za-z][\w-]*(?:\s+|$))+)")


def output_of(command):
    try:
        result = subprocess.run([str(word) for word in command], cwd=ROOT, check=False,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=120)
    except OSError as error:
        raise Failure(f"cannot run {command[0]} ({error.strerror}); tools/setup builds it") \
            from error
    if result.returncode != 0:
        raise Failure(f"{shlex.join(str(word) for word in command)} failed:\n{result.stdout}")
    return result.stdout


def _entries(lines):
    """(declaration, meaning) of each option of a section; a meaning may be on the next line."""
    entries = []
    for line in lines:
        if line.startswith(" " * _COLUMN) and entries:
            entries[-1][1] = (entries[-1][1] + " " + line.strip()).strip()
        elif len(line) > _COLUMN and line[_COLUMN - 1] == " " and line[_COLUMN] != " " and \
                _is_whole(line[:_COLUMN], line[_COLUMN:]):
            entries.append([line[:_COLUMN].strip(), line[_COLUMN:].strip()])
        else:
            entries.append([line.strip(), ""])
    return entries


def _is_whole(declaration, meaning):
    """Whether the declaration ends there, rather than having a space there and its end after it."""
    return declaration.count("[") == declaration.count("]") and \
        not declaration.rstrip().endswith(("Excludes:", "Needs:")) and \
        not meaning.startswith(("--", "REQUIRED"))


def _option(declaration, meaning):
    rules = {kind: words.split() for kind, words in _RULES.findall(declaration)}
    bare = _RULES.sub("", declaration).strip()
    names, _, value = bare.partition(" ")
    optional = re.search(r"\{([^}]*)\}$", names)  # --resume{newest}
    if optional:
        names = names[:optional.start()]
        value = f"[={optional[1]}] {value}".strip()
    return Option(tuple(names.split(",")), value.strip(), rules, meaning)


def parse_help(text):
    lines = text.splitlines()
    summary, usage, sections, at = lines[0], "", [], 1
    while at < len(lines):
        line = lines[at]
        if line.startswith("Usage: "):
            usage = line[len("Usage: "):]
        elif re.match(r"[A-Z][A-Za-z ]*:$", line) and at + 1 < len(lines) and \
                re.match(r"  \S", lines[at + 1]):
            at += 1
            begin = at
            while at < len(lines) and lines[at].startswith("  "):
                at += 1
            sections.append(Section(line[:-1], [_option(*entry)
                                                for entry in _entries(lines[begin:at])]))
            continue
        elif line.strip():
            break
        at += 1
    return Help(summary, usage, sections, lines[at:])


class Program:
    """One that was built, `sluice`; what it is asked is remembered."""

    def __init__(self, path):
        self.path = path
        self._helps, self._keys = {}, None

    def help(self, command=None):
        if command not in self._helps:
            words = [command] if command else []
            self._helps[command] = parse_help(output_of([self.path, *words, "--help"]))
        return self._helps[command]

    def commands(self):
        """{name: what it does}, in the program's order."""
        (listed,) = [section for section in self.help().sections if section.title == "Subcommands"]
        return {option.names[0]: option.meaning for option in listed.options}

    def is_script(self, command):
        """Whether another program in Python, with its own form of help, is behind the command."""
        return self.help(command).summary.startswith("usage: ")

    def option_names(self, command=None):
        if command and self.is_script(command):
            return set(_LONG_OPTION.findall(output_of([self.path, command, "--help"])))
        return {name for section in self.help(command).sections if section.title != "Subcommands"
                for option in section.options for name in option.names}

    def keys(self):
        if self._keys is None:
            self._keys = parse_keys(output_of([self.path, "config", "--keys"]))
        return self._keys


_STATUS = re.compile(r"(ignored|refused|the same as|the old name of)\b(.*)")


def parse_keys(text):
    keys = []
    for block in text.strip().split("\n\n"):
        path, *lines = block.splitlines()
        lines = [line.strip() for line in lines]
        parts = lines[0].split("; ")
        status = _STATUS.match(lines[0])
        if status and status[1] in ("the same as", "the old name of"):
            other, _, source = status[2].strip().rpartition("; ")
            keys.append(Key(path, status[1], other, "", source, "", tuple(lines[1:])))
        elif status:
            what, _, source = lines[0].rpartition("; ")
            keys.append(Key(path, status[1], what, "", source, " ".join(lines[1:2]),
                            tuple(lines[2:])))
        else:
            (at,) = [n for n, part in enumerate(parts) if part.startswith("default ")]
            keys.append(Key(path, "honoured", "; ".join(parts[:at]), parts[at][len("default "):],
                            "; ".join(parts[at + 1:]), " ".join(lines[1:2]), tuple(lines[2:])))
    if not keys:
        raise Failure("sluice config --keys printed no key")
    return keys
