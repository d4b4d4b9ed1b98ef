#!/usr/bin/env python3
"""ARCHITECTURE.md names only what exists: architecture_test.py ROOT.

Every file and folder that it names in backticks exists, and so do the targets of its links. Each
line of its invariants names a test. The same holds for each README.md of a folder that has a
section "Invariants". The two pages that are read first stay short.
"""

import re
import subprocess
import sys
from pathlib import Path

MOST_BYTES = {"ARCHITECTURE.md": 20_000, "README.md": 12_000}
CODE = re.compile(r"`([^`\n]+)`")
# A name with a slash, or with the suffix of one of our files: no other code in the text has these.
PATH = re.compile(r"[\w.+-]+(/[\w.+-]+)*/?")
SUFFIXES = (".h", ".cc", ".cu", ".cuh", ".py", ".md", ".cmake", ".txt", ".svg", ".js")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SKIPPED = ("build", "out", ".")


def named(line):
    """The paths that a line names, in order."""
    return [word for word in CODE.findall(line)
            if PATH.fullmatch(word) and ("/" in word or word.endswith(SUFFIXES))]


def missing(page, folder, root):
    """Paths that exist neither in `root` or `folder` nor in a folder that their line names
    first."""
    text = FENCE.sub(lambda fence: "\n" * fence.group().count("\n"), page)
    for number, line in enumerate(text.splitlines(), 1):
        places = [root, folder]
        for word in named(line):
            found = next((place / word for place in places if (place / word).exists()), None)
            if found is None:
                yield number, f"`{word}` does not exist"
            elif found.is_dir():
                places.append(found)
        for target in LINK.findall(line):
            if "://" not in target and not (folder / target).exists():
                yield number, f"the link to {target} leads nowhere"


def without_test(page, root):
    """Lines of the section "Invariants" without a test file."""
    in_section = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.startswith("## "):
            in_section = line == "## Invariants"
        elif in_section and line.startswith("- "):
            tests = [word for word in named(line) if word.startswith("tests/")]
            if not any((root / word).is_file() for word in tests):
                yield number, "the invariant names no test file that exists"


def main():
    root = Path(sys.argv[1])
    findings = []
    for name, most in MOST_BYTES.items():
        size = (root / name).stat().st_size
        if size > most:
            findings.append(f"{name} has {size} bytes, more than {most}")
    pages = [root / "ARCHITECTURE.md"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=False, capture_output=True,
                            text=True)
    ours = {root / name for name in listed.stdout.split("\0")}
    for top in sorted(root.iterdir()):
        if top.is_dir() and not top.name.startswith(SKIPPED):
            pages += sorted(it for it in top.rglob("README.md")
                            if it in ours or listed.returncode != 0)
    invariants = 0
    for path in pages:
        page = path.read_text(encoding="utf-8")
        complaints = list(without_test(page, root))
        if path == pages[0] or "\n## Invariants\n" in page:
            complaints += missing(page, path.parent, root)
            invariants += page.count("\n- ")
        findings += [f"{path.relative_to(root)}:{number}: {what}" for number, what in complaints]
    if invariants == 0:
        findings.append("ARCHITECTURE.md has no invariants")
    print("\n".join(findings) or f"{len(pages)} pages, {invariants} lines")
    return 1 if findings else 0


sys.exit(main())
