"""tools/trace_summary on traces whose times can be calculated by hand."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent.parent / "tools" / "trace_summary"


def span(track, begin_us, end_us, moved=None):
    return {"ph": "X", "pid": 1, "tid": 1, "name": "x", "cat": track, "ts": begin_us,
            "dur": end_us - begin_us, "args": {} if moved is None else {"bytes": moved}}


class Summary(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-trace-test-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(TOOL), *arguments], cwd=self.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=60, check=False)

    def summary(self, *spans, **other):
        name = {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "x"}}
        (self.folder / "trace.json").write_text(
            json.dumps({"otherData": other, "traceEvents": [name, *spans]}), encoding="utf-8")
        result = self.run_tool("trace.json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    @staticmethod
    def rows(text, title):
        """The cells of the table below `title`, by track; two spaces separate cells."""
        lines = text[text.index(title):].splitlines()[1:]
        rows = {}
        for line in lines:
            if not line.strip():
                if rows:
                    break
                continue
            cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
            rows[cells[0]] = cells[1:]
        return rows

    def test_counts_spans_that_overlap_once_and_what_they_moved_in_all(self):
        shown = self.summary(span("NVMe read", 0, 600, 3_000_000), span("NVMe read", 400, 1000, 0),
                             span("compute", 500, 2000), window_us=[0, 2000]).stdout
        tracks = self.rows(shown, "track")
        self.assertIn("2.0 ms of steps", shown)
        self.assertEqual(tracks["NVMe read"], ["2", "1.0", "50.0%", "0.003", "3.00"])
        self.assertEqual(tracks["compute"], ["1", "1.5", "75.0%", "-", "-"])
        self.assertEqual(tracks["D2H"], ["0", "0.0", "0.0%", "-", "-"])

    def test_tells_which_share_of_a_track_another_one_covers(self):
        shown = self.summary(span("compute", 0, 100), span("compute", 20, 80),
                             span("compute", 300, 500), span("H2D", 50, 150),
                             span("H2D", 250, 350), span("D2H", 480, 900)).stdout
        overlaps = self.rows(shown, "share of a track's busy time")
        # In the order of the tracks, without the track itself.
        self.assertEqual(overlaps["compute"], ["33.3%", "6.7%", "0.0%", "0.0%", "0.0%"])
        self.assertEqual(overlaps["H2D"], ["50.0%", "0.0%", "0.0%", "0.0%", "0.0%"])
        self.assertEqual(overlaps["AdamW"], ["-"] * 5)

    def test_cuts_off_what_lies_beyond_the_steps(self):
        shown = self.summary(span("NVMe write", -500, 500, 2_000_000),
                             span("NVMe write", 900, 4900, 4_000_000),
                             span("NVMe write", 2000, 3000, 7_000_000),
                             window_us=[0, 1000]).stdout
        self.assertEqual(self.rows(shown, "track")["NVMe write"],
                         ["2", "0.6", "60.0%", "0.001", "1.83"])

    def test_shows_one_of_several_ranks_and_how_much_of_its_link_was_hidden(self):
        spans = [span("compute", 0, 100), span("link", 50, 250),
                 {**span("compute", 0, 300), "pid": 2}, {**span("link", 100, 200), "pid": 2}]
        shown = self.summary(*spans).stdout
        self.assertIn("rank 0 of 2", shown)
        self.assertEqual(self.rows(shown, "share of a track's busy time")["link"][0], "25.0%")
        shown = self.run_tool("trace.json", "--rank", "1").stdout
        self.assertEqual(self.rows(shown, "share of a track's busy time")["link"][0], "100.0%")
        refused = self.run_tool("trace.json", "--rank", "2")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("last one is 1", refused.stderr)

    def test_adds_up_the_phases_of_units(self):
        def phase(name, unit, track, begin_us, end_us):
            return {**span(track, begin_us, end_us), "name": f"{name} {unit}",
                    "args": {"phase": name, "unit": unit, "wave": 0}}

        shown = self.summary(
            {**span("run", 0, 2000), "name": "step", "args": {"step": 7}},
            phase("forward", "h.0", "compute", 0, 100), phase("forward", "h.1", "compute", 100, 400),
            phase("recompute", "h.1", "compute", 500, 600),
            phase("backward", "h.1", "compute", 600, 1200),
            phase("backward", "h.1", "compute", 1200, 1300),
            phase("await parameters", "h.1", "waits", 400, 500),
            phase("adamw", "h.0", "AdamW", 0, 900), window_us=[0, 2000]).stdout
        phases = self.rows(shown, "phases of compute")
        self.assertEqual(phases["backward"], ["2", "0.7", "35.0%", "h.1 0.7 ms"])
        self.assertEqual(phases["forward"], ["2", "0.4", "20.0%", "h.1 0.3 ms"])
        self.assertEqual(phases["recompute"], ["1", "0.1", "5.0%", "h.1 0.1 ms"])
        self.assertEqual(phases["await parameters"], ["1", "0.1", "5.0%", "h.1 0.1 ms"])
        self.assertNotIn("adamw", phases)
        tracks = self.rows(shown, "track")
        self.assertEqual(tracks["waits"][0], "1")
        self.assertNotIn("run", tracks)

    def test_says_when_spans_are_missing(self):
        result = self.summary(span("compute", 0, 1), dropped_spans=7)
        self.assertIn("7 spans", result.stderr)

    def test_takes_the_runs_folder_too(self):
        self.summary(span("compute", 0, 1000))
        self.assertIn("1.0 ms of steps", self.run_tool(str(self.folder)).stdout)

    def test_says_what_is_wrong_in_one_sentence(self):
        (self.folder / "text.json").write_text("no", encoding="utf-8")
        (self.folder / "list.json").write_text("[]", encoding="utf-8")
        (self.folder / "empty.json").write_text('{"traceEvents": []}', encoding="utf-8")
        for argument, sentence in (("absent.json", "cannot read absent.json"),
                                   ("text.json", "text.json is not a trace"),
                                   ("list.json", "list.json is not a trace"),
                                   ("empty.json", "holds no time")):
            with self.subTest(argument=argument):
                result = self.run_tool(argument)
                self.assertEqual(result.returncode, 1)
                self.assertIn(sentence, result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1)
        self.assertEqual(self.run_tool().returncode, 2)


if __name__ == "__main__":
    unittest.main()
