"""Just enough of Markdown for the checks: which lines are code, where links lead, what headings are
called."""

import re
import string
import unicodedata
from collections import namedtuple

Line = namedtuple("Line", "number text is_code")
Fence = namedtuple("Fence", "number indent language words lines")  # lines: without the marks
Link = namedtuple("Link", "number text target")

_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([^`]*)$")
_CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\n\s*\n).)+?)(?<!`)\1(?!`)", re.DOTALL)
# [text](target "title"), where text may have brackets of its own, as an image has.
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\](?:\([^()]*\))?)*)\]"
                   r"\(\s*<?([^()\s<>]*(?:\([^()\s]*\)[^()\s]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^\s{0,3}\[([^\]]+)\]:\s*<?(\S+?)>?\s*$")
_HTML_TARGET = re.compile(r"<(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)=\"([^\"]+)\"", re.I)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_ATTRIBUTES = re.compile(r"\s*\{:?[^}]*\}\s*$")
_ID = re.compile(r"\{:?[^}]*#([^\s}]+)[^}]*\}\s*$")
_HTML_ID = re.compile(r"<[^>]*\b(?:id|name)=\"([^\"]+)\"")


def parts_of(text):
    """Lines and fences of a page, in order: every Line, and a Fence after its last line."""
    opening, content = None, []
    for number, line in enumerate(text.splitlines(), 1):
        mark = _FENCE.match(line)
        if opening is None and mark:
            opening, content = (number, mark), []
            yield Line(number, line, True)
        elif opening is not None and mark and not mark[3] and \
                mark[2].startswith(opening[1][2]):
            yield Line(number, line, True)
            yield _fence(opening, content)
            opening = None
        else:
            if opening is not None:
                content.append(line)
            yield Line(number, line, opening is not None)
    if opening is not None:
        yield _fence(opening, content)


def _fence(opening, content):
    number, mark = opening
    words = mark[3].split()
    return Fence(number, len(mark[1]), words[0] if words else "", tuple(words[1:]),
                 tuple(content))


def lines_of(text):
    return [part for part in parts_of(text) if isinstance(part, Line)]


def fences_of(text):
    return [part for part in parts_of(text) if isinstance(part, Fence)]


def replace_code_spans(text, by=None):
    """`text` with each code span replaced by `by`; by default by as many spaces."""
    return _CODE_SPAN.sub(
        lambda span: re.sub(r"[^\n]", " ", span[0]) if by is None else by, text)


def code_spans(text):
    """(line, content) of every `code span` outside fences; one may continue on the next line."""
    prose = "\n".join("" if line.is_code else line.text for line in lines_of(text))
    for span in _CODE_SPAN.finditer(prose):
        yield prose.count("\n", 0, span.start()) + 1, " ".join(span[2].split())


def without_code(text):
    """The page with its fences and code spans blanked, so that positions stay what they are."""
    return replace_code_spans("\n".join(" " * len(line.text) if line.is_code else line.text
                                        for line in lines_of(text)))


def links_of(text):
    """Inline links, images, reference definitions and HTML's links, outside code."""
    prose = without_code(text)
    for found in _LINK.finditer(prose):
        number = prose.count("\n", 0, found.start()) + 1
        yield Link(number, found[1], found[2])
        for inner in _LINK.finditer(found[1]):  # an image that is a link
            yield Link(number, inner[1], inner[2])
    for number, line in enumerate(prose.splitlines(), 1):
        definition = _REFERENCE.match(line)
        if definition and not definition[1].startswith("^"):
            yield Link(number, definition[1], definition[2])
        for found in _HTML_TARGET.finditer(line):
            yield Link(number, "", found[1].split()[0])


def replace_links(text, by):
    """The page with by(whole, text, target) in place of each inline link outside code."""
    prose, made, end = without_code(text), [], 0
    original = "\n".join(text.splitlines())
    for found in _LINK.finditer(prose):
        begin, stop = found.span(1)
        made += [original[end:found.start()],
                 by(original[found.start():found.end()], original[begin:stop], found[2])]
        end = found.end()
    return "".join([*made, original[end:], "\n"])


def slug(heading):
    """The anchor that GitHub gives a heading, and mkdocs.yml's slugify too."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = re.sub(r"<[^>]*>", "", text)
    text = re.sub(r"(?<!\w)_([^_]+)_(?!\w)", r"\1", text)
    kept = [letter for letter in unicodedata.normalize("NFC", text).strip().lower()
            if letter in "-_ " or letter not in string.punctuation
            and unicodedata.category(letter)[0] in "LNM"]
    return "".join(kept).replace(" ", "-")


def headings_of(text):
    """(line, level, text) of every heading."""
    for line in lines_of(text):
        found = None if line.is_code else _HEADING.match(line.text)
        if found:
            yield line.number, len(found[1]), _ATTRIBUTES.sub("", found[2])


def anchors_of(text):
    """Every anchor of a page, as GitHub numbers those of one name."""
    anchors, seen = {""}, {}
    for line in lines_of(text):
        if line.is_code:
            continue
        anchors.update(_HTML_ID.findall(line.text))
        found = _HEADING.match(line.text)
        if not found:
            continue
        given = _ID.search(found[2])
        name = given[1] if given else slug(_ATTRIBUTES.sub("", found[2]))
        count = seen[name] = seen.get(name, -1) + 1
        anchors.add(name if count == 0 else f"{name}-{count}")
    return anchors
