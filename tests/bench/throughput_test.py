"""bench/throughput: what it makes of step_bench's results, and that it goes on where it stopped.

step_bench is a small script here, which writes throughput_step_bench.json, a result of the real one
for a tiny model on the CPU, with the speed, the memory and the GPU that a case asks for.
"""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parents[1] / "bench"
sys.dont_write_bytecode = True
sys.path.insert(0, str(BENCH))

import svg_chart  # noqa: E402
import throughput_rows as rows  # noqa: E402
from json_lines import JsonLines, NotResults, read_lines  # noqa: E402

RECORDED = json.loads((HERE / "throughput_step_bench.json").read_text(encoding="utf-8"))
GIB = 2**30
SVG = "{http://www.w3.org/2000/svg}"
MACHINE = {"cpu": "a CPU", "cores": 2, "ram_bytes": 8 * GIB, "kernel": "Linux", "gpu": None}


def result(tokens_per_s=1000.0, gpu=True, **more):
    step = {"step_s": 8192 / tokens_per_s, "tokens_per_s": tokens_per_s}
    card = {"gpu": {"name": "a GPU", "product_flops_per_s": 1e14}} if gpu else {}
    return {**RECORDED, "median": {**RECORDED["median"], **step}, **card, **more}


def record(model="xl", tokens=8192, ok=True, **more):
    return {"model": model, "tokens": tokens, "ok": ok, "asked": [], "machine": MACHINE,
            "settings": {"gpu_gib": 24, "micro": 8, "sequence": 1024}, "commit": "abc",
            **({"result": result()} if ok else {"error": "it broke"}), **more}


def points(*records):
    return rows.newest(records)


def cells_of(text, title):
    """By the words at the head of the columns."""
    lines = [[cell.strip() for cell in line.strip("|\n ").split(" | ")]
             for line in text.splitlines() if line.startswith("| ")]
    line = next(one for one in lines if one[0] == title)
    return dict(zip(lines[0], line))


class Numbers(unittest.TestCase):
    def test_a_recorded_result_has_all_of_them(self):
        it = rows.numbers(record(result=RECORDED))
        self.assertEqual((it.waves, it.wave_micro_batches, it.steps),
                         (RECORDED["waves"], RECORDED["wave_micro_batches"], 2))
        self.assertEqual(it.tokens_per_s, RECORDED["median"]["tokens_per_s"])
        self.assertGreater(it.host_bytes, 0)
        self.assertGreater(it.nvme_bytes, 0)
        self.assertEqual(it.limit_flops, 0)  # on the CPU products are not measured
        self.assertAlmostEqual(
            it.of_prediction, RECORDED["median"]["step_s"] / RECORDED["predicted_step_s"])
        self.assertAlmostEqual(it.flops, 6 * RECORDED["parameters"] * it.tokens_per_s)

    def test_an_embedding_that_is_looked_up_multiplies_nothing(self):
        it = rows.numbers(record(result=result(100.0, parameters=1000,
                                               untied_embedding_parameters=400)))
        self.assertEqual((it.flops, it.flops_multiplied), (600_000, 360_000))

    def test_the_limit_is_the_probes_unless_one_is_given(self):
        self.assertEqual(rows.numbers(record()).limit_flops, 1e14)
        self.assertEqual(rows.numbers(record(), 5.0).limit_flops, 5e12)

    def test_the_gpus_peak_is_the_larger_of_both_counts(self):
        for used, peak, most in ((7, 5, 5), (9, 5, 6), (0, 5, 5)):
            memory = {**RECORDED["memory"], "gpu_peak_bytes": peak,
                      "before": {**RECORDED["memory"]["before"], "gpu_used_bytes": 3},
                      "after": {**RECORDED["memory"]["after"], "gpu_used_bytes": used}}
            it = rows.numbers(record(result=result(memory=memory)))
            self.assertEqual(it.gpu_bytes, most)

    def test_a_result_from_before_waves_were_written_is_taken(self):
        old = {key: value for key, value in result(gpu=False).items()
               if key not in ("waves", "wave_micro_batches", "untied_embedding_parameters",
                              "predicted_step_s")}
        cells = cells_of(rows.table(points(record(result=old))), "GPT-2 XL")
        self.assertEqual([cells[head] for head in ("waves x micro-batches", "of products",
                                                   "step / prediction")], ["-", "-", "-"])


class Tables(unittest.TestCase):
    def test_a_row_says_what_was_measured(self):
        told = result(20_000.0, parameters=10**9, untied_embedding_parameters=10**8, waves=16,
                      wave_micro_batches=4, predicted_step_s=8192 / 20_000.0 / 1.05)
        text = rows.table(points(record("qwen2.5-7b", 524288, result=told)))
        cells = cells_of(text, "Qwen2.5-7B")
        self.assertEqual(cells["tokens a step"], "524,288")
        self.assertEqual(cells["waves x micro-batches"], "16 x 4")
        self.assertEqual((cells["tokens/s"], cells["step"]), ("20,000", "410 ms"))
        self.assertEqual(cells["TFLOP/s by 6N"], "120.0 (108.0)")
        self.assertEqual(cells["of products"], "120.0% (108.0%)")
        self.assertEqual(cells["step / prediction"], "1.05")

    def test_it_is_markdown_and_failures_are_rows(self):
        text = rows.table(points(
            record(), record(tokens=16384, ok=False, refused=True, error="no | room"),
            record("13b", ok=False, error="not done after 600 s"), record("mine.json")))
        self.assertEqual({line.count("|") for line in text.splitlines()}, {len(rows.HEAD) + 1})
        self.assertIn("| refused: no / room |", text)
        self.assertIn("| failed: not done after 600 s |", text)
        self.assertEqual([line.split("|")[1].strip() for line in text.splitlines()[2:]],
                         ["GPT-2 XL", "GPT-2 XL", "GPT 13B (40 x 5120)", "mine.json"])

    def test_a_failure_never_replaces_a_measurement(self):
        good, bad = record(commit="good"), record(ok=False, commit="bad")
        for records, left in (((good, bad), "good"), ((bad, good), "good"),
                              ((good, record(commit="later")), "later")):
            self.assertEqual(rows.newest(records)["xl", 8192]["commit"], left)

    def test_every_machine_and_commit_is_named(self):
        other = record(tokens=16384, commit="def", machine={**MACHINE, "kernel": "Linux 7"})
        text = rows.heading(points(record(), other))
        for words in ("a GPU, a CPU, 2 cores, 8 GiB RAM, Linux; a GPU", "Linux 7",
                      "commit abc; def", "24 GiB of the GPU, micro-batches of 8 x 1024",
                      "large products reach 100 TFLOP/s"):
            self.assertIn(words, text)


class Pictures(unittest.TestCase):
    COUNTS = (8192, 16384, 65536)

    def tree(self, *records, **more):
        return xml.etree.ElementTree.fromstring(rows.picture(points(*records), **more))

    def test_doublings_are_equally_far_apart(self):
        axis = svg_chart.Axis("tokens", list(self.COUNTS), logarithmic=True)
        first, second, third = (axis.place(x) for x in self.COUNTS)
        self.assertAlmostEqual(2 * (second - first), third - second)
        self.assertTrue(svg_chart.LEFT < first < third < svg_chart.WIDTH - svg_chart.RIGHT)
        self.assertEqual([words for _, words in axis.marks()], ["8,192", "16,384", "65,536"])

    def test_a_line_a_model_and_a_panel_a_tier(self):
        tree = self.tree(*(record(model, count, result=result(speed * count))
                           for model, speed in (("xl", 2.0), ("13b", 1.0))
                           for count in self.COUNTS))
        words = [node.text for node in tree.iter(SVG + "text")]
        for label in ("% of products' rate, by 6N", "host, GiB", "NVMe, GiB", "tokens of a step",
                      "GPT-2 XL, up to 131,072 tokens/s", "16,384"):
            self.assertIn(label, words)
        self.assertNotIn("GPU, GiB", words)  # on the CPU nothing of one is taken
        self.assertEqual(len(list(tree.iter(SVG + "path"))), 3 * 2)
        self.assertEqual(len(list(tree.iter(SVG + "circle"))), 3 * 2 * 3)
        fast, slow = (float(dot.get("cy")) for dot in list(tree.iter(SVG + "circle"))[2:6:3])
        self.assertLess(fast, slow)  # higher up

    def test_what_failed_is_a_gap(self):
        tree = self.tree(record(), record(tokens=16384, ok=False), record(tokens=65536))
        path = next(tree.iter(SVG + "path")).get("d")
        self.assertEqual((path.count("M"), path.count("L")), (2, 0))

    def test_one_point_and_none(self):
        self.assertEqual(len(list(self.tree(record()).iter(SVG + "circle"))), 3)
        self.assertIsNone(rows.picture(points(record(ok=False))))

    def test_without_a_limit_of_products_it_shows_flops(self):
        told = record(result=result(gpu=False))
        for tflops, label in ((0.0, "TFLOP/s, by 6N"), (700.0, "% of products' rate, by 6N")):
            tree = self.tree(told, product_tflops=tflops)
            self.assertIn(label, [node.text for node in tree.iter(SVG + "text")])


class Lines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="throughput_test_", dir=os.getcwd())
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "x.jsonl"

    def test_a_line_that_was_cut_short_gives_way_to_the_next(self):
        lines = JsonLines(self.file)
        lines.add({"a": 1})
        lines.add({"a": 2})
        whole = self.file.read_bytes()
        for length in range(len(whole) + 1):
            self.file.write_bytes(whole[:length])
            left = whole[:length].count(b"\n")
            lines = JsonLines(self.file)
            self.assertEqual(lines.records, [{"a": 1}, {"a": 2}][:left])
            lines.add({"b": 3})
            self.assertEqual(read_lines(self.file)[0], [*[{"a": 1}, {"a": 2}][:left], {"b": 3}])

    def test_other_files_are_refused(self):
        for text in ("hello\n", "{\"a\": 1}\nhello\n{\"a\": 2}\n", "[1]\n", "\xff\n"):
            self.file.write_text(text, encoding="latin-1")
            with self.assertRaises(NotResults):
                read_lines(self.file)


STEP_BENCH = """#!{python}
import json, sys, time
words = sys.argv[1:]
keys = dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")
count = int(keys["gradient_accumulation_steps"])
with open({log!r}, "a") as log:
    log.write(" ".join(words) + chr(10))
out = json.load(open({recorded!r}))
{body}
out["median"].update(tokens_per_s=1000.0 * count, step_s=8.192)
json.dump(out, open(words[words.index("--json") + 1], "w"))
"""
NO_ROOM = """
if count == 2:
    out = dict(out_of_memory=True, error="93.02G of GPU memory are missing", median=None)
    json.dump(out, open(words[words.index("--json") + 1], "w"))
    sys.exit(3)
"""


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="throughput_test_", dir=os.getcwd()))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = self.folder / "out"
        self.step_bench("")

    def step_bench(self, body):
        path = self.folder / "step_bench"
        path.write_text(STEP_BENCH.format(
            python=sys.executable + " -S", log=str(self.folder / "log"), body=body,
            recorded=str(HERE / "throughput_step_bench.json")), encoding="utf-8")
        path.chmod(0o755)

    def runs(self):
        log = self.folder / "log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []

    def command(self, *arguments):
        return [sys.executable, "-S", "-B", str(BENCH / "throughput"), "--binary",
                str(self.folder / "step_bench"), "--nvme", str(self.folder / "nvme"), "--out",
                str(self.out), "--commit", "abc", *arguments]

    def run_it(self, *arguments, code=0):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def records(self):
        return read_lines(self.out / "throughput.jsonl")[0]

    def test_measures_each_point_once_and_goes_on(self):
        (self.folder / "nvme/mine").mkdir(parents=True)
        done = self.run_it("--models", "xl,13b", "--tokens", "8k,16384")
        self.assertEqual([rows.point_of(r) for r in self.records()],
                         [(model, count) for model in ("xl", "13b") for count in (8192, 16384)])
        first, last = self.runs()[0].split(), self.runs()[-1]
        for word in ("gradient_accumulation_steps=1", "budget.gpu_gib=24", "budget.cpu_gib=112",
                     "train_micro_batch_size_per_gpu=8", "data.sequence_length=1024"):
            self.assertIn(word, first)
        self.assertNotIn("nvme", self.runs()[0])
        self.assertIn("budget.nvme_paths=", last)
        self.assertNotIn("budget.cpu_gib", last)  # what its configuration says
        self.assertEqual([*(self.folder / "nvme").iterdir()], [self.folder / "nvme/mine"])
        self.assertIn("2,000", done.stdout)
        self.assertIn((self.out / "throughput.md").read_text(encoding="utf-8"), done.stdout)
        xml.etree.ElementTree.parse(self.out / "throughput.svg")
        with open(self.out / "throughput.jsonl", "a", encoding="utf-8") as file:
            file.write('{"model":"xl","tok')  # a machine that went away
        self.run_it("--models", "xl,13b", "--tokens", "8k,16k,32k")
        self.assertEqual(len(self.runs()), 6)
        self.assertEqual(len(self.records()), 6)

    def test_refusals_and_time_outs_are_rows(self):
        self.step_bench(NO_ROOM + "if count == 4:\n    time.sleep(600)\nif count == 8:\n"
                        "    sys.exit('step_bench: model.layers is missing')")
        self.run_it("--models", "xl", "--tokens", "8k,16k,65k")
        arguments = ["--models", "xl", "--tokens", "8k,16k,32k,65k"]
        done = self.run_it(*arguments, "--limit-s", "0.3")
        for words in ("refused: 93.02G of GPU memory are missing", "1,000",
                      "failed: not done after 0 s", "failed: model.layers is missing"):
            self.assertIn(words, done.stdout)
        self.run_it(*arguments)
        self.assertEqual(len(self.records()), 4)
        self.step_bench("")
        self.run_it(*arguments, "--again-failed")
        self.assertEqual(len(self.records()), 7)
        self.assertTrue(all(r["ok"] for r in rows.newest(self.records()).values()))

    def test_other_settings_are_another_result(self):
        self.run_it("--models", "xl", "--tokens", "8k")
        done = self.run_it("--models", "xl", "--tokens", "8k", "--cpu-gib", "64", code=2)
        self.assertIn("by other settings", done.stderr)
        self.assertEqual(len(self.runs()), 1)

    def test_draws_what_several_files_have(self):
        other = self.folder / "other"
        self.run_it("--models", "xl", "--tokens", "8k")
        self.run_it("--models", "3.3b", "--tokens", "16k", "--out", str(other))
        files = [str(folder / "throughput.jsonl") for folder in (self.out, other)]
        done = self.run_it("--draw-only", *files, "--out", str(self.folder / "both"))
        self.assertIn("GPT-2 XL", done.stdout)
        self.assertIn("GPT 3.3B", done.stdout)
        self.assertTrue((self.folder / "both/throughput.svg").exists())
        done = self.run_it("--draw-only", *files, "--models", "xl")
        self.assertNotIn("GPT 3.3B", done.stdout)
        self.assertEqual(len(self.runs()), 2)

    def test_an_interruption_keeps_what_there_is(self):
        self.step_bench("if count == 2:\n    time.sleep(600)")
        process = subprocess.Popen(self.command("--models", "xl", "--tokens", "8k,16k"), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(self.runs()) < 2 and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("interrupted", errors)
        self.assertIn("1,000", output)
        self.assertEqual(len(self.records()), 1)

    def test_what_the_total_cuts_short_can_be_made_later(self):
        done = self.run_it("--models", "xl", "--tokens", "8k", "--total-s", "5")
        self.assertIn("--total-s is over", done.stderr)
        self.assertEqual(self.runs(), [])

    def test_refuses_bad_input(self):
        program = runpy.run_path(str(BENCH / "throughput"))
        binary = ["--binary", str(self.folder / "step_bench")]
        program["parse_options"](binary)
        for arguments in (["--models", "gpt9"], ["--tokens", "9000"], ["--tokens", "many"],
                          ["--tokens", "0"], ["--tokens", ""], ["--binary", "/nowhere"],
                          ["--limit-s", "0"], ["--gpu-gib", "-1"]):
            with self.subTest(arguments=arguments), self.assertRaises(program["UserError"]):
                program["parse_options"]([*binary, *arguments])

    def test_a_refusal_is_a_sentence(self):
        (self.folder / "x.jsonl").write_text("hello\n", encoding="utf-8")
        done = self.run_it("--draw-only", str(self.folder / "x.jsonl"), code=2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        self.assertRegex(done.stderr, "line 1:.*not a result")


if __name__ == "__main__":
    unittest.main()
