"""The files that the last commits changed, and sources to check that include all of them.

A file does not count as changed if it only moved and names other moved files by their new paths, or
if only its comments differ.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

from toolbox import ROOT, Failure

# The number of sources that are checked for each changed header, if so many include it.
INCLUDERS = 2


def git(*arguments):
    result = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if result.returncode != 0:
        raise Failure(f"git {' '.join(arguments[:2])} failed: {result.stderr.strip()}")
    return result.stdout


class Blobs:
    """Contents of files by git's object names."""

    def __enter__(self):
        self._process = subprocess.Popen(["git", "cat-file", "--batch"], cwd=ROOT,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __getitem__(self, name):
        self._process.stdin.write(name.encode() + b"\n")
        self._process.stdin.flush()
        header = self._process.stdout.readline().split()
        if len(header) != 3:
            raise Failure(f"git has no object {name}; is the clone whole?")
        text = self._process.stdout.read(int(header[2]) + 1)[:-1]
        return text.decode("utf-8", errors="replace")


class Change:
    """A line of git's raw diff."""

    def __init__(self, words, paths):
        self.old_blob, self.new_blob, status = words[2:5]
        self.kind = status[0]
        self.old_path, self.path = paths[0], paths[-1]


def parse_raw(text):
    """The changes in the output of `git log --raw -z` or `git diff --raw -z`, per commit:
    [Change]."""
    commits, fields, position = [], text.split("\0"), 0
    while position < len(fields):
        field = fields[position].strip("\n")
        position += 1
        if field.startswith("commit "):
            commits.append([])
        elif field.startswith(":"):
            words = field[1:].split()
            count = 2 if words[4][0] in "RC" else 1
            if not commits:
                commits.append([])
            commits[-1].append(Change(words, fields[position:position + count]))
            position += count
    return commits


INCLUDE = re.compile(r'^#include "([^"]+)"$', re.MULTILINE)
COMMENT = re.compile(r"(^|\s)//(?!.*NOLINT).*$", re.MULTILINE)


def meaning(text, moved=None):
    """A source without its layout, its comments and the folders of its headers."""
    includes = Counter((moved or {}).get(name, name) for name in INCLUDE.findall(text))
    return includes, "".join(COMMENT.sub("", INCLUDE.sub("", text)).split())


def really_changed(changes, blobs):
    """The changes of a commit that are more than moves."""
    moved = {change.old_path: change.path for change in changes if change.kind == "R"}
    for change in changes:
        if change.kind == "D" or change.old_blob == change.new_blob:
            continue
        if change.kind in "MR" and set(change.new_blob) != {"0"} and \
                meaning(blobs[change.old_blob], moved) == meaning(blobs[change.new_blob]):
            continue
        yield change


def in_commits(commits):
    """Today's paths of the files that these commits, newest first, changed."""
    changed, name_today = set(), {}
    with Blobs() as blobs:
        for changes in commits:
            for change in really_changed(changes, blobs):
                changed.add(name_today.get(change.path, change.path))
            for change in changes:
                if change.kind == "R":
                    name_today[change.old_path] = name_today.get(change.path, change.path)
    return {path for path in changed if (ROOT / path).is_file()}


def changed_files(count):
    """The paths changed by the last `count` commits or not committed yet, and a sentence that says
    so; None for the paths if there is no commit to compare with."""
    raw = ("--raw", "-z", "--no-abbrev", "--no-ext-diff", "--no-textconv", "-M")
    last = git("rev-list", f"--max-count={count}", "HEAD").split()
    # The oldest commits of a shallow clone appear to add every file.
    shallow = Path(git("rev-parse", "--git-path", "shallow").strip())
    cut_off = set((ROOT / shallow).read_text(encoding="ascii").split()
                  if (ROOT / shallow).exists() else ())
    known = [commit for commit in last if commit not in cut_off]
    if not known:
        return None, "this shallow clone has no former commit to compare with"
    log = git("log", "--no-walk=unsorted", "--no-merges", "--format=commit %H%x00", *raw, *known)
    merged = git("log", "--no-walk=unsorted", "--merges", "--cc", "--format=", "--name-only", "-z",
                 *known)
    changed = in_commits(parse_raw(git("diff", *raw, "HEAD")) + parse_raw(log))
    changed |= {name.strip("\n") for name in merged.split("\0")}
    changed |= set(git("ls-files", "-z", "--others", "--exclude-standard").split("\0"))
    since = f"the last {len(known)} commits"
    if len(known) < count and cut_off:
        since += f" (all that this shallow clone has of the {count})"
    return {path for path in changed if path and (ROOT / path).is_file()}, since


def choose_sources(included, changed):
    """The changed sources, and some for each changed header.

    included: source -> the files that its compilation read and git tracks. Returns the sources, and
    the changed headers that no source includes."""
    chosen = {source for source in included if source in changed}
    headers = {path for path in changed if path.endswith((".h", ".cuh"))}
    users = {header: [] for header in headers}
    for source, files in sorted(included.items()):
        for header in headers.intersection(files):
            users[header].append(source)

    def missing(header):
        there = sum(source in chosen for source in users[header])
        return max(0, min(INCLUDERS, len(users[header])) - there)

    def order(header):
        """A sort key: the header's own source first, then sources that include the most unchecked
        headers."""
        def of(source):
            lacking = sum(missing(other) > 0 for other in headers.intersection(included[source]))
            own = Path(source).with_suffix("") == Path(header).with_suffix("")
            return not own, -lacking, len(included[source]), source
        return of

    for header in sorted(headers, key=lambda name: (len(users[name]), name)):
        while missing(header):
            chosen.add(min((source for source in users[header] if source not in chosen),
                           key=order(header)))
    unseen = [header for header in headers if header.endswith(".h") and not users[header]]
    return chosen, sorted(unseen)
