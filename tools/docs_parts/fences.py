"""Shell commands in the documentation: programs and options that exist."""

import os
import re
import shlex
import shutil
from pathlib import Path

from docs_parts import markdown
from docs_parts.program import output_of
from toolbox import ROOT, Failure

MARKS = ("gpu", "download", "example")
# Programs of the shell and of any system that can build; they are not looked for.
USUAL = frozenset(
    "[ alias awk bg cat cd chmod cmake cp ctest cut df diff du echo env exec exit export find "
    "for free git grep head if jobs kill ldd less ln ls man mkdir mv ninja nproc pip printf pwd "
    "python python3 rm sed set sh bash sleep sort source tail tar tee test time timeout touch "
    "tr trap true ulimit umask unset wait wc while xargs . : then else fi do done".split())
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPTION = re.compile(r"--[A-Za-z][\w-]*")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_WRITTEN = re.compile(r">\s*([\w./-]+)")
# Sections of the run file whose keys are recognised in `code`; others are also names in Python.
_KEYS_OF = ("run", "budget", "placement", "zero_optimization", "scheduler", "recipe", "aio",
            "activation_checkpointing", "flops_profiler", "csv_monitor")
_KEY = re.compile(rf"(?:{'|'.join(_KEYS_OF)})(?:\.[a-z][a-z0-9_]*)+")
_FILE_SUFFIXES = (".json", ".jsonl", ".bin", ".md", ".py", ".sh", ".csv", ".html", ".safetensors",
                  ".log", ".txt", ".pt")


def pages(files):
    return [name for name in files if name == "README.md"
            or name.startswith("docs/") and name.endswith(".md")]


def commands_of(lines, first_number):
    """(line, words) of every simple command of a shell script; words of what is not plain shell
    are left out."""
    number, at = first_number, 0
    while at < len(lines):
        begin, text = number + at, lines[at]
        at += 1
        while at < len(lines) and (text.endswith("\\") or not _is_closed(text)):
            text = text[:-1] + " " + lines[at] if text.endswith("\\") else text + "\n" + lines[at]
            at += 1
        here = _HEREDOC.search(text)
        if here:
            while at < len(lines) and lines[at].strip() != here[2]:
                at += 1
            at += 1
            text = text[:here.start()] + text[here.end():]
        for words in _simple_commands(_without_comment(text)):
            yield begin, words


def _is_closed(text):
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def _without_comment(text):
    quote = ""
    for at, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or text[at - 1].isspace()):
            return text[:at]
    return text


def _simple_commands(text):
    lexer = shlex.shlex(text.replace("\n", " "), posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words, skip = [], False
    try:
        tokens = list(lexer)
    except ValueError:
        return
    for token in tokens:
        if token and set(token) <= set(";&|()"):
            if words:
                yield words
            words = []
        elif token and set(token) <= set("<>&"):
            skip = True  # a redirection: its file is no argument
            if words and words[-1] in ("1", "2"):
                words.pop()
        elif skip:
            skip = False
        else:
            words.append(token)
    if words:
        yield words


class Checker:
    """Says what of a command does not exist. `program`: sluice as it was built."""

    def __init__(self, program):
        self._program = program
        self._keys = {key.path for key in program.keys()}
        self._options = {}

    def page(self, name, text):
        """What is wrong with a page's commands, as FILE:LINE: sentences."""
        written = set()
        for fence in markdown.fences_of(text):
            if fence.language in ("bash", "shell", "console", "zsh"):
                yield f"{name}:{fence.number}: write ```sh in place of ```{fence.language}"
            if fence.language != "sh":
                continue
            for mark in fence.words:
                if mark not in MARKS:
                    yield f"{name}:{fence.number}: ```sh {mark}: the marks are {', '.join(MARKS)}"
            written.update(_WRITTEN.findall("\n".join(fence.lines)))
            for number, words in commands_of(fence.lines, fence.number + 1):
                for what in self.command(words, bool(fence.words), written):
                    yield f"{name}:{number}: {what}"
        for number, content in markdown.code_spans(text):
            for what in self.code(content):
                yield f"{name}:{number}: {what}"

    def code(self, content):
        """What is wrong with `code` in a sentence: one of our commands, or a key."""
        first = content.split(" ")[0]
        if " " in content and self._own(first):
            for _, words in commands_of([content], 1):
                yield from self.command(words, is_marked=True)
        if _KEY.fullmatch(content) and not content.endswith(_FILE_SUFFIXES):
            yield from self._key(content)

    def command(self, words, is_marked, written=()):
        """`written`: files that the page's own commands have written."""
        words = list(words)
        while words and (_ASSIGNMENT.match(words[0]) or words[0] in ("$", "!", "then", "do")):
            words.pop(0)
        ours = [at for at, word in enumerate(words) if self._own(word)]
        if ours:
            at = ours[0]
            yield from self._arguments(words[at], words[at + 1:])
        elif words and not is_marked:
            yield from self._program_exists(words[0])
        for word in words:
            if word.endswith(".py") and "/" in word and not is_marked and word not in written and \
                    not (ROOT / word).exists() and not word.startswith(("/", "~", "$")):
                yield f"there is no {word}"

    def _own(self, word):
        """Whether a word is one of this project's programs."""
        path = Path(word)
        if path.name in ("sluice", "sluice-log") or path.name.endswith("_bench"):
            return not set("=:") & set(word) and "/sluice/" not in word  # no assignment, no mount
        return word.startswith(("tools/", "./tools/", "build/bin/")) and not path.suffix

    def _program_exists(self, word):
        if word in USUAL or word.startswith(("$", "~", "<", "/")):
            return
        if "/" not in word and shutil.which(word):
            return
        if "/" in word and os.access(ROOT / word, os.X_OK):
            return
        yield (f"there is no program {word}; a fence that needs more than a built checkout is "
               f"marked ({', '.join(MARKS)})")

    def _arguments(self, word, words):
        name = Path(word).name
        if name == "sluice":
            yield from self._sluice(words)
            return
        try:
            known = self._options_of(word)
        except Failure:
            yield f"there is no program {word}"
            return
        for argument in words:
            option = _OPTION.match(argument)
            if option and option[0] not in known:
                yield f"{word} has no option {option[0]}"

    def _options_of(self, word):
        if word not in self._options:
            path = ROOT / word if "/" in word else self._program.path.parent / word
            if not os.access(path, os.X_OK):
                path = self._program.path.parent / Path(word).name
            self._options[word] = set(_OPTION.findall(output_of([path, "--help"])))
        return self._options[word]

    def _sluice(self, words):
        commands, command = self._program.commands(), None
        values = iter(words)
        for word in values:
            option = _OPTION.match(word)
            if command is None and not word.startswith("-"):
                if word.isupper() or word == "...":  # COMMAND, in a sentence
                    return
                if word not in commands:
                    if not _is_number(word):  # the value of an option before the command
                        yield f"sluice has no command {word}"
                        return
                    continue
                command = word
            elif option:
                if option[0] not in self._program.option_names(command):
                    yield f"sluice {command or ''} has no option {option[0]}".replace("  ", " ")
                elif option[0] == "--set" and "=" not in word:
                    yield from self._setting(next(values, ""))
                elif option[0] == "--set":
                    yield from self._setting(word.partition("=")[2])

    def _setting(self, text):
        key, equals, _ = text.partition("=")
        if equals and not key.isupper():
            yield from self._key(key)

    def _key(self, key):
        if key not in self._keys and not any(
                other.startswith(key + ".") for other in self._keys):
            yield f"a run file has no key {key}"


def _is_number(text):
    return re.fullmatch(r"[\d.]+", text) is not None


def findings(names, program, root=ROOT):
    checker = Checker(program)
    for name in names:
        yield from checker.page(name, (root / name).read_text(encoding="utf-8"))


def script_of(text):
    """The unmarked shell fences of a page as one script."""
    made = []
    for fence in markdown.fences_of(text):
        if fence.language == "sh" and not fence.words:
            made += [line[fence.indent:] if not line[:fence.indent].strip() else line
                     for line in fence.lines]
    return "\n".join(made) + "\n"
