"""The outcome of each case of the tests that ctest ran."""

import xml.etree.ElementTree
from collections import Counter, namedtuple

Case = namedtuple("Case", "name outcome seconds")


def cases_in(file):
    """A Case for each line that tests/run_cases.py wrote to the file."""
    cases = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        outcome, seconds, name = line.split("\t")
        # A running case ended when the program that wrote this was stopped.
        cases[name] = ("failed" if outcome == "running" else outcome, float(seconds))
    return [Case(name, *rest) for name, rest in cases.items()]


def all_cases(results, folder):
    """Every case of GoogleTest programs, and every other test, as a Case."""
    for test in xml.etree.ElementTree.parse(results).getroot().iter("testcase"):
        name, failed = test.get("name"), test.find("failure") is not None
        file = folder / f"{name}.tsv"
        cases = cases_in(file) if file.exists() else []
        yield from cases
        skipped = test.find("skipped") is not None or test.get("status") == "disabled"
        if failed and all(case.outcome != "failed" for case in cases):
            yield Case(name, "failed", float(test.get("time")))
        elif not failed and not file.exists():
            yield Case(name, "skipped" if skipped else "passed", float(test.get("time")))


def summary_of(cases):
    counts = Counter(case.outcome for case in cases)
    ran = counts["passed"] + counts["failed"]
    share = 100 if not counts["failed"] else min(99, 100 * counts["passed"] // ran)
    print(f"{share}% tests passed, {counts['failed']} tests failed out of {len(cases)}")
    skipped = Counter(case.name.split(".")[0].split("/")[-1]  # All/AdamwCuda.EqualsTheHost/3
                      for case in cases if case.outcome == "skipped")
    if skipped:
        print(f"{counts['skipped']} of them were skipped: " + ", ".join(
            suite if count == 1 else f"{suite} ({count})" for suite, count in skipped.items()))
