"""loss_curve: its charts, and that it sees whether two runs are the same training.

Runs under a Python with torch; the programs are in the folder that the environment's BUILD names.
"""

import array
import importlib.util
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

BUILD = Path(os.environ.get("BUILD", "build")).resolve()
ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import reference_packages  # noqa: E402
import svg_chart  # noqa: E402
from svg_chart import Axis, Curve, Panel  # noqa: E402

reference_packages.use()
MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]


class Charts(unittest.TestCase):
    def test_ticks_are_round_and_cover_the_values(self):
        draw = random.Random(3)
        for _ in range(500):
            low = draw.uniform(-10, 10) * 10 ** draw.randrange(-6, 4)
            high = low + draw.uniform(0.001, 10) * 10 ** draw.randrange(-6, 4)
            marks = svg_chart.ticks(low, high)
            slack = 1e-6 * (high - low)
            self.assertLessEqual(marks[0], low + slack)
            self.assertGreaterEqual(marks[-1], high - slack)
            self.assertTrue(2 <= len(marks) <= 9, marks)
            digits = f"{(marks[-1] - marks[0]) / (len(marks) - 1):e}"[0]
            self.assertIn(digits, "1259")  # 9: 0.99999... of a power of ten

    def test_equal_values_have_an_axis_too(self):
        for value in (0.0, 5.0, -2.0):
            marks = svg_chart.ticks(value, value)
            self.assertLess(marks[0], marks[-1])

    def test_a_chart_is_xml_and_curves_stay_in_their_panels(self):
        values = [1.0, 3.0, math.nan, 2.0, math.inf, 4.0]
        text = svg_chart.chart("a < b", Axis("step", list(range(1, 7))), [
            Panel("loss", 200, [Curve("one & two", "#000", values)]),
            Panel("difference", 100, [Curve("three", "#111", [-0.5] * 6, dashed=True)])])
        tree = xml.etree.ElementTree.fromstring(text)
        name = "{http://www.w3.org/2000/svg}"
        paths = [node.get("d").split(" ") for node in tree.iter(name + "path")]
        self.assertEqual([sum(word.startswith("M") for word in path) for path in paths], [3, 1])
        heights = [[float(word) for word in path[1::2]] for path in paths]
        self.assertTrue(all(svg_chart.TOP <= y <= svg_chart.TOP + 200 for y in heights[0]))
        self.assertLess(heights[0][1], heights[0][0])  # 3 is above 1
        words = [node.text for node in tree.iter(name + "text")]
        for word in ("a < b", "step", "loss", "difference", "one & two", "three"):
            self.assertIn(word, words)


# Stands for a Python: runs PyTorch's side once for each job, and gives repetitions its results.
# Only Sluice's side differs between most runs, and importing transformers takes seconds.
ONCE = """#!{python}
import hashlib, json, os, shutil, subprocess, sys
*_, what, path = sys.argv
with open(path, encoding="utf-8") as file:
    job = json.load(file)
start = job.pop("start")
if what == "init":
    job = {{"seed": job["seed"], "shape": job["shape"]}}
kept = os.path.join({folder!r}, hashlib.sha256(json.dumps([what, job]).encode()).hexdigest())
if not os.path.exists(kept + ".out"):
    with open(kept + ".new", "wb") as out:
        subprocess.run([{python!r}, *sys.argv[1:]], stdout=out, check=True)
    if what == "init":
        shutil.copytree(start, kept)
    os.rename(kept + ".new", kept + ".out")
elif what == "init":
    shutil.copytree(kept, start, dirs_exist_ok=True)
with open(kept + ".out", encoding="utf-8") as out:
    sys.stdout.write(out.read())
"""


@unittest.skipIf(MISSING, f"{', '.join(MISSING)} not there; tools/setup --for=test installs it")
class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="loss_curve_test_", dir=os.getcwd())
        cls.addClassCleanup(folder.cleanup)
        cls.shared = Path(folder.name)
        draw = random.Random(4)
        tokens = array.array("H", [1])
        for _ in range(6000):
            tokens.append((tokens[-1] * 5 + 3 + draw.randrange(2)) % 61)
        if sys.byteorder == "big":
            tokens.byteswap()
        (cls.shared / "text.bin").write_bytes(tokens.tobytes())
        once = ONCE.format(python=sys.executable, folder=folder.name)
        (cls.shared / "python").write_text(once, encoding="utf-8")
        (cls.shared / "python").chmod(0o755)

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="loss_curve_test_", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def run_it(self, *arguments, code=0):
        command = [sys.executable, "-B", str(ROOT / "bench/loss_curve"), "--python",
                   str(self.shared / "python"), "--build", str(BUILD), "--out",
                   str(self.path / "out"), "--data", str(self.shared / "text.bin"), "--vocab", "64",
                   "--model", "tiny",
                   "--sequence", "32", "--micro", "4", "--accumulation", "2", "--warmup", "4",
                   "--steps", "12", "--device", "cpu", "--threads", "1", "--lr", "0.004",
                   *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result

    def result(self):
        return json.loads((self.path / "out/loss_curve.json").read_text(encoding="utf-8"))

    def test_the_same_training_has_the_same_curve(self):
        self.run_it("--precision", "fp32")
        result = self.result()
        torch = result["losses"]["PyTorch"]
        self.assertLess(torch[-1], torch[0] - 0.3)
        self.assertLess(result["summary"][0]["largest"], 1e-4)
        xml.etree.ElementTree.parse(self.path / "out/loss_curve.svg")

    def test_bf16_stays_close_and_has_a_control(self):
        self.run_it("--control")
        sluice, control = self.result()["summary"]
        self.assertEqual((sluice["name"], control["name"]), ("Sluice", "PyTorch, fp32"))
        self.assertTrue(0 < sluice["largest"] < 0.05, sluice)
        self.assertTrue(0 < control["largest"] < 0.05, control)

    def test_other_batches_are_seen(self):
        self.run_it("--precision", "fp32", "--set", "data.shuffle_seed=12")
        self.assertGreater(self.result()["summary"][0]["largest"], 1e-3)

    def test_another_schedule_is_refused(self):
        result = self.run_it("--set", "scheduler.params.warmup_num_steps=9", code=1)
        self.assertIn("did not train alike", result.stderr)

    def test_refuses_bad_input(self):
        for arguments in (["--steps", "1"], ["--lr", "0"], ["--data", "/nowhere"],
                          ["--python", "/nowhere/python"], ["--build", "/nowhere"],
                          ["--micro", "0"]):
            with self.subTest(arguments=arguments):
                result = self.run_it(*arguments, code=2)
                self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()
