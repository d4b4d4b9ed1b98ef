"""tests/run_cases.py with cases that crash, hang or end the process; and the counts of tools/test.

CASES is a program with such cases.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from test_outcomes import Case, all_cases  # noqa: E402: needs the path

JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="4" failures="2" disabled="0" skipped="1">
  <testcase name="killed_test" time="9" status="fail"><failure message="Timeout"/></testcase>
  <testcase name="broken_test" time="2" status="fail"><failure message="Failed"/></testcase>
  <testcase name="good_test" time="1" status="run"/>
  <testcase name="Script" time="3.5" status="run"/>
  <testcase name="Absent" time="0" status="notrun"><skipped message="SKIP"/></testcase>
</testsuite>
"""


class RunCases(unittest.TestCase):
    def run_cases(self, pattern, *words, shard=()):
        """Exit status, output, and case -> outcome."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "of/cases.tsv"
            result = subprocess.run(
                [sys.executable, "-B", str(ROOT / "tests/run_cases.py"), f"--filter={pattern}",
                 f"--outcomes={file}", "--case-timeout=2", *shard, os.environ["CASES"], *words],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                check=False)
            lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
        return result.returncode, result.stdout, {name: outcome for outcome, _, name in lines}

    def test_shows_nothing_of_cases_that_pass(self):
        status, said, outcomes = self.run_cases("Good.*:Of/*")
        self.assertEqual(status, 0, said)
        self.assertEqual(outcomes, {
            "Good.Passes": "passed", "Good.EndsItsOutputWithoutANewline": "passed",
            "Good.IsSkipped": "skipped",
            **{f"Of/Numbered.Passes/{number}": "passed" for number in range(5)}})
        self.assertIn("not on this machine", said)
        self.assertNotIn("or so this one prints", said)
        self.assertEqual(said.splitlines()[-1], "7 passed, 0 failed, 1 skipped")

    def test_names_what_fails_crashes_hangs_and_ends_the_process_and_runs_the_rest(self):
        for words in ((), ("--gtest_shuffle", "--gtest_random_seed=3")):
            status, said, outcomes = self.run_cases("-Race.*:Between.*", *words)
            self.assertEqual(status, 1)
            self.assertEqual(len(outcomes), 12)
            self.assertEqual({name for name, outcome in outcomes.items() if outcome == "failed"},
                             {"Bad.Fails", "Bad.Crashes", "Bad.EndsTheProcess", "Bad.Hangs"})
            self.assertIn("failed: Bad.Hangs\n", said)
            self.assertIn("after 2 s", said)
            self.assertRegex(said, r"Bad\.Crashes:.*signal 6")
            self.assertEqual(said.splitlines()[-1], "7 passed, 4 failed, 1 skipped")

    def test_fails_where_the_process_ends_between_two_cases(self):
        for pattern in ("Between.*:Of/*", "Between.*"):
            status, said, outcomes = self.run_cases(pattern)
            self.assertEqual(status, 1, said)
            self.assertEqual(set(outcomes.values()), {"passed"})
            self.assertIn("itself", said)

    def test_runs_every_case_of_a_shard_and_no_other(self):
        ran = []
        for number in "123":
            _, _, outcomes = self.run_cases("-Race.*:Between.*", shard=[f"--shard={number}/3"])
            self.assertEqual(len(outcomes), 4)
            ran += outcomes
        self.assertEqual(len(ran), 12)
        self.assertEqual(len(set(ran)), 12)

    def test_names_the_case_during_which_a_sanitizer_reported(self):
        status, said, outcomes = self.run_cases("Race.*:Good.Passes")
        self.assertEqual((status, outcomes), (1, {"Good.Passes": "passed",
                                                  "Race.IsReported": "failed"}), said)

    def test_fails_where_the_program_does_not_run(self):
        status, said, outcomes = self.run_cases("*", "--gtest_list_tests")
        self.assertEqual((status, outcomes), (1, {}), said)

    def test_passes_where_no_case_is_meant(self):
        self.assertEqual(self.run_cases("Long*"), (0, "0 passed, 0 failed, 0 skipped\n", {}))


class Outcomes(unittest.TestCase):
    def test_counts_cases_and_says_which_was_running(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "results.xml").write_text(JUNIT, encoding="utf-8")
            (folder / "killed_test.tsv").write_text("running\t0.00\tA.A\npassed\t0.10\tA.A\n"
                                                    "running\t0.00\tA.B\n", encoding="utf-8")
            (folder / "good_test.tsv").write_text("skipped\t0.00\tC.C\n", encoding="utf-8")
            (folder / "broken_test.tsv").write_text("passed\t0.20\tD.D\n", encoding="utf-8")
            self.assertEqual(list(all_cases(folder / "results.xml", folder)), [
                Case("A.A", "passed", 0.1), Case("A.B", "failed", 0.0), Case("D.D", "passed", 0.2),
                Case("broken_test", "failed", 2.0), Case("C.C", "skipped", 0.0),
                Case("Script", "passed", 3.5), Case("Absent", "skipped", 0.0)])


if __name__ == "__main__":
    unittest.main()
