"""kernel_gaps: which gaps it sees, which of them came from a late launch, and bad files."""

import gzip
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "bench/kernel_gaps"


def kernel(name, begin, duration, correlation, category="kernel"):
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": duration,
            "args": {"correlation": correlation}}


def launch(returned, correlation):
    return kernel("cudaLaunchKernel", returned - 3, 3, correlation, "cuda_runtime")


class KernelGaps(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "trace.json"

    def run_it(self, *arguments, code=0):
        result = subprocess.run([sys.executable, PROGRAM, self.path, *map(str, arguments)],
                                capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def write(self, *events):
        self.path.write_text(json.dumps({"traceEvents": list(events)}), encoding="utf-8")

    def rows(self, output):
        return {" ".join(line.split()[:-7]): line.split()[-7:] for line in output.splitlines()
                if " ms" in line}

    def test_gaps_by_length_and_lateness(self):
        self.write(
            kernel("a", 100, 10, 1), launch(20, 1),
            kernel("b", 111, 9, 2), launch(21, 2),       # 1 us behind a, launched long before
            kernel("inside", 112, 2, 3), launch(22, 3),  # runs beside b: no gap
            kernel("fill", 123, 7, 4, "gpu_memset"), launch(30, 4),  # 3 us behind b
            kernel("Memcpy HtoD", 130, 40, 5, "gpu_memcpy"),         # a copy is no kernel
            kernel("c", 180, 20, 6), launch(175, 6),     # 50 us, and launched 5 us before
            kernel("d", 1000, 100, 7), launch(995, 7))   # 800 us
        rows = self.rows(self.run_it().stdout)
        self.assertEqual(rows["0 to 2 us"], ["1", "0.001", "ms", "0.1%", "0", "0.000", "ms"])
        self.assertEqual(rows["2 to 5 us"][:2], ["1", "0.003"])
        self.assertEqual(rows["5 to 20 us"][0], "0")
        self.assertEqual(rows["20 to 100 us"], ["1", "0.050", "ms", "5.0%", "1", "0.050", "ms"])
        self.assertEqual(rows["all of them"][:2], ["3", "0.054"])
        self.assertEqual(rows["fill -> c"][4], "1")
        self.assertEqual(rows["c -> d"][:2], ["1", "0.800"])

    def test_options_move_the_limits(self):
        self.write(kernel("a", 0, 10, 1), kernel("b", 60, 10, 2), launch(55, 2))
        self.assertEqual(self.rows(self.run_it("--late", 4).stdout)["all of them"][4], "0")
        output = self.run_it("--longest", 40).stdout
        self.assertEqual(self.rows(output)["all of them"][0], "0")
        self.assertIn("longer", output)

    def test_reads_what_was_compressed(self):
        self.path = self.path.with_suffix(".json.gz")
        with gzip.open(self.path, "wt", encoding="utf-8") as file:
            json.dump({"traceEvents": [kernel("a", 0, 1, 1), kernel("b", 2, 1, 2)]}, file)
        self.assertEqual(self.rows(self.run_it().stdout)["all of them"][0], "1")

    def test_bad_files_are_told_in_a_sentence(self):
        self.assertIn("cannot be read", self.run_it(code=2).stderr)
        self.path.write_text("{", encoding="utf-8")
        self.assertIn("no trace of step_bench", self.run_it(code=2).stderr)
        self.write(launch(20, 1))
        self.assertIn("no kernel", self.run_it(code=2).stderr)


if __name__ == "__main__":
    unittest.main()
