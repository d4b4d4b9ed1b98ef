"""model_bench from outside: bad input, and what a tiny run on the CPU says.

The program is the environment's MODEL_BENCH. Nothing here looks at speed.
"""

import json
import os
import subprocess
import tempfile
import unittest

MODEL_BENCH = os.path.abspath(os.environ.get("MODEL_BENCH", "build/bin/model_bench"))
SMALL = ["--device", "cpu", "--threads", "1", "--layers", "3", "--hidden", "64", "--heads", "2",
         "--tokens", "16", "--micro-batch", "2", "--runs", "2"]


def run(*arguments):
    return subprocess.run([MODEL_BENCH, *arguments], timeout=120, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True)


class ModelBenchTest(unittest.TestCase):
    def test_refuses_bad_input_with_one_sentence(self):
        for arguments, needle in ((["--model", "gpt3"], "--model"),
                                  (["--tokens", "0"], "--tokens"),
                                  (["--micro-batch", "two"], "--micro-batch"),
                                  (["--dtype", "fp8"], "fp16"),
                                  (["--dropout", "1"], "--dropout"),
                                  (["--device", "tpu"], "--device"),
                                  (["--hidden", "65", "--heads", "2"], "heads"),
                                  (["--runs", "-1"], "--runs")):
            with self.subTest(arguments=arguments):
                result = run(*arguments)
                self.assertEqual(result.returncode, 2, result.stderr + result.stdout)
                lines = result.stderr.strip().splitlines()
                self.assertEqual(len(lines), 1, result.stderr)
                self.assertTrue(lines[0].startswith("model_bench: "), lines[0])
                self.assertIn(needle, lines[0])
                self.assertEqual(result.stdout, "")

    def test_a_models_time_is_the_sum_of_its_units(self):
        with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
            path = os.path.join(folder, "out.json")
            result = run(*SMALL, "--dtype", "fp32", "--json", path)
            self.assertEqual(result.returncode, 0, result.stderr)
            with open(path, encoding="utf-8") as file:
                report = json.load(file)
        ms = {it["name"]: it["median_ms"] for it in report["passes"]}
        for name, value in ms.items():
            self.assertGreater(value, 0, name)
            self.assertIn(name, result.stdout)
        self.assertTrue(all(len(it["ms"]) == 2 for it in report["passes"]))
        rest = ms["head loss and gradient"] + ms["embedding forward"] + ms["embedding backward"]
        models = {it["name"]: it["ms"] for it in report["models"]}
        saved = 3 * (ms["block forward, saving"] + ms["block backward"]) + rest
        again = 3 * (ms["block forward"] + ms["block recompute"] + ms["block backward"]) + rest
        self.assertAlmostEqual(models["model, activations saved"], saved)
        self.assertAlmostEqual(models["model, recomputed"], again)
        self.assertEqual(report["unit_input_bytes"], 2 * 16 * 64 * 4)


if __name__ == "__main__":
    unittest.main()
