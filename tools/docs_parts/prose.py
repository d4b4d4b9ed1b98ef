"""The check of prose: sentences that a reader has to read twice.

A file of counts says which paths are checked, and how many findings each still has. A count may
only fall. To add a path, give it a count that is too high: tools/lint --fix lowers it. Pages are
checked outside their code, and sources (C++, CUDA, JavaScript, Python) in their comments.
"""

import fnmatch
import io
import json
import re
import tokenize

from docs_parts import markdown
from toolbox import read_json

COUNTS = "tools/docs_parts/prose_counts.json"
MOST_WORDS = 30
FIRST_WORDS = ("Of", "Those", "As", "Likewise")
# What is found (a space is any space), and what to write instead.
_WORDS = {
    "beside": "next to, with, in addition to or compared with",
    "behind(?! an? |[.,;:])": "after",
    "lies?(?! (?:between|within|above|below|outside))": "is, or is stored",
    "goes on(?! (?:the|a|an|its|one|each|top))": "continues",
    "(?:is|are|was|were|be|been) told": "gets, or reads",
    "knows": "has, reads or recognises",
    "what is there": "the name of the thing",
    "whoever": "anyone who, or the one who",
    "nobody": "no process, no program or no one"}
BANNED = tuple(
    (re.compile(r"\b(?:" + pattern.replace(" ", r"\s+") + r")\b", re.IGNORECASE), instead)
    for pattern, instead in _WORDS.items())

_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|etc|approx|No|Fig)|\b[A-Z])\.$")
_END = re.compile(r"[.!?][\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9`])")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?")
_WORD = re.compile(r"[^\W_]")
_CODE_SUFFIXES = (".cc", ".h", ".cu", ".cuh", ".js")


# --- paragraphs: [(line, text), ...] of one that may be broken over lines ------------------------

def _of_markdown(text):
    """(paragraph, is_table) of everything outside fences."""
    paragraph = []
    in_comment = False
    for line in markdown.lines_of(text):
        shown = line.text.lstrip().removeprefix("> ")
        stripped = shown.strip()
        if in_comment or stripped.startswith("<!--"):
            in_comment = "-->" not in stripped
            stripped = ""
        is_table = stripped.startswith("|") and not line.is_code
        is_item = _ITEM.match(shown)
        ends = line.is_code or not stripped or is_table or is_item or stripped[0] == "#"
        if ends and paragraph:
            yield paragraph, False
            paragraph = []
        if line.is_code or not stripped:
            continue
        if is_table:
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield [(line.number, cell)], True
        elif stripped[0] == "#":
            yield [(line.number, stripped.lstrip("#"))], False
        else:
            paragraph.append((line.number, _ITEM.sub("", shown) if is_item else shown))
    if paragraph:
        yield paragraph, False


def _of_comments(comments):
    """Paragraphs of [(line, text of a comment)]: neighbouring lines, unless one is empty."""
    paragraph = []
    for number, text in comments:
        apart = paragraph and number != paragraph[-1][0] + 1
        if paragraph and (apart or not text.strip() or _ITEM.match(text)):
            yield paragraph, False
            paragraph = []
        if text.strip():
            paragraph.append((number, _ITEM.sub("", text)))
    if paragraph:
        yield paragraph, False


def _of_cpp(text):
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        outside = re.sub(r'"(?:\\.|[^"\\])*"', lambda text: " " * len(text[0]), line)
        at = outside.find("//")
        if at >= 0:
            found.append((number, line[at:].lstrip("/").removeprefix(" ")))
    return _of_comments(found)


def _of_python(text):
    found = []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    before = tokenize.NEWLINE
    for token in tokens:
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            found.append((token.start[0], token.string.lstrip("# ")))
        elif token.type == tokenize.STRING and token.string.startswith('"""') and \
                before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            found += [(token.start[0] + at, line.strip())
                      for at, line in enumerate(token.string.strip('"').splitlines())]
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    yield from _of_comments(found)


def _paragraphs(name, text):
    if name.endswith(".md"):
        return _of_markdown(text)
    if name.endswith(_CODE_SUFFIXES):
        return _of_cpp(text)
    return _of_python(text)


# --- sentences -----------------------------------------------------------------------------------

def _plain(text):
    """Without marks: code is one word, a link its text."""
    text = markdown.replace_code_spans(text, "Code")
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)\n]*\)", r"\1", text)
    text = re.sub(r"</?[A-Za-z][^>\n]*>", "", text)
    return text.replace("**", "")


def _sentences(paragraph):
    """(line, sentence) of a paragraph."""
    text = _plain("\n".join(line for _, line in paragraph))
    begin = 0
    for end in [*_END.finditer(text), None]:
        stop = len(text) if end is None else end.end()
        if end is not None and _ABBREVIATION.search(text[begin:end.start() + 1]):
            continue
        sentence = text[begin:stop]
        skipped = len(sentence) - len(sentence.lstrip())
        at = text.count("\n", 0, begin + skipped)
        if sentence.strip():
            yield paragraph[min(at, len(paragraph) - 1)][0], sentence.strip()
        begin = stop


def findings(name, text):
    """(line, what) of a file."""
    for paragraph, is_table in _paragraphs(name, text):
        for number, sentence in _sentences(paragraph):
            words = [word for word in sentence.split() if _WORD.search(word)]
            first = words[0].strip("(*_,.") if words else ""
            if first in FIRST_WORDS:
                yield number, f"a sentence begins with \"{first}\": {_begin(sentence)}"
            for pattern, instead in BANNED:
                for found in pattern.finditer(sentence):
                    at = number + sentence.count("\n", 0, found.start())
                    yield at, f"\"{' '.join(found[0].split())}\": write {instead}"
            if len(words) > MOST_WORDS and not is_table:
                yield number, (f"a sentence of {len(words)} words, {MOST_WORDS} at most: "
                               f"{_begin(sentence)}")


def _begin(sentence):
    words = sentence.split()
    return " ".join(words[:6]) + (" ..." if len(words) > 6 else "")


# --- counts --------------------------------------------------------------------------------------

def load_counts(root):
    """{pattern of paths: findings}; a * also stands for folders."""
    return read_json((root / COUNTS).read_text(encoding="utf-8"))


def check(root, files, fix):
    """(what is wrong as FILE:LINE: sentences, how many files were read). With `fix` counts that are
    too high are lowered in their file."""
    counts, wrong, read, lower = load_counts(root), [], set(), {}
    for pattern, most in counts.items():
        names = [name for name in files if fnmatch.fnmatchcase(name, pattern)]
        if not names:
            continue
        read.update(names)
        found = [f"{name}:{number}: {what}" for name in names for number, what in
                 findings(name, (root / name).read_text(encoding="utf-8"))]
        if len(found) > most:
            wrong += [*found, f"{pattern}: {len(found)} findings" +
                      (f", and {COUNTS} allows {most}" if most else "")]
        elif len(found) < most:
            lower[pattern] = len(found)
    if lower and fix:
        (root / COUNTS).write_text(json.dumps({**counts, **lower}, indent=2) + "\n",
                                   encoding="utf-8")
    elif lower:
        wrong += [f"{COUNTS}: {pattern} has {count} findings, fewer than {counts[pattern]}; "
                  "tools/lint --fix lowers the count" for pattern, count in lower.items()]
    return wrong, len(read)
