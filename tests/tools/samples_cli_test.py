"""samples.prompts: texts that `sluice train` generates on its way.

The oracle is `sluice generate` with the checkpoint of the same step.
SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import re
import sys
import unittest

from sluice_program import HAS_ENGINE, TokenData

PROMPTS = ["some", "words, some", "w"]
TOKENS = 9


def plain(text):
    """The text as events have it: without control characters."""
    return re.sub(r"[\x00-\x1f]", " ", text)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Samples(TokenData):
    def setUp(self):
        super().setUp()
        self.write("prompts.txt", "\n".join(PROMPTS) + "\n\n")
        self.train = ["train", "run.json", *self.of("bytes"), "--steps", "6", "--set",
                      "run.eval_every=2", "--set", "run.checkpoint_every=2", "--set",
                      "run.keep_last=0"]
        self.samples = ["--set", "samples.prompts=prompts.txt", "--set", f"samples.tokens={TOKENS}"]

    def found(self, name):
        lines = (self.path / name / "events.jsonl").read_text(encoding="utf-8").splitlines()
        found = [it for it in map(json.loads, lines) if it["event"] == "sample"]
        return [{**it, "text": plain(it["text"])} for it in found]

    def expected(self, name, step, *more):
        return [plain(self.sluice("generate", name, "--checkpoint", str(step), "--prompt", prompt,
                                  "--tokens", str(TOKENS), "--temperature", "0",
                                  *more).stdout.removesuffix("\n")) for prompt in PROMPTS]

    def results(self, name):
        return [{key: step[key] for key in ("step", "loss", "grad_norm", "lr", "loss_scale")}
                for step in self.metrics(name)]

    def check(self, name, *more, every=2, steps=6):
        found = self.found(name)
        self.assertEqual([(it["step"], it["prompt"]) for it in found],
                         [(step, prompt) for step in range(every, steps + 1, every)
                          for prompt in PROMPTS])
        for step in range(every, steps + 1, every):
            self.assertEqual([it["text"] for it in found if it["step"] == step],
                             self.expected(name, step, *more))

    def test_are_what_generate_writes_and_change_no_bit(self):
        (self.path / "nvme").mkdir()
        nvme = ["--set", "zero_optimization.offload_param.device=nvme", "--set",
                "zero_optimization.offload_optimizer.device=nvme", "--set",
                'budget.nvme_paths=["nvme"]', "--set", "model.dropout=0.1"]
        for name, more in (("memory", []), ("nvme", nvme)):
            with self.subTest(name):
                self.sluice(*self.train, *more, "--out", f"{name}-plain", "--save-weights",
                            f"{name}-plain.safetensors")
                told = self.sluice(*self.train, *more, "--out", name, *self.samples,
                                   "--save-weights", f"{name}.safetensors").stderr
                self.assertIn("step 2  sample  some", told)
                self.assertEqual(self.results(name), self.results(f"{name}-plain"))
                self.assertEqual(
                    (self.path / f"{name}.safetensors").read_bytes(),
                    (self.path / f"{name}-plain.safetensors").read_bytes())
                self.check(name)

    def test_are_made_by_several_ranks_together(self):
        self.sluice(*self.train, "--out", "a", *self.samples, "--ranks", "2", "--set",
                    "train_micro_batch_size_per_gpu=1")
        self.check("a")

    def test_come_every_so_many_steps_and_after_a_resume(self):
        every = ["--set", "samples.every=3"]
        self.sluice(*self.train, "--out", "a", *self.samples, *every, "--set",
                    "run.checkpoint_every=3")
        self.check("a", every=3)
        self.sluice("train", "a/config.json", "--out", "a", "--resume", "--steps", "9")
        self.check("a", every=3, steps=9)

    def test_of_adapters_are_those_of_the_model_with_them(self):
        config = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        config["model"].update({"family": "llama", "preset": "custom"})
        self.write("base.json", config)
        self.sluice("train", "base.json", *self.of("bytes"), "--out", "base")
        self.sluice("export", "base", "hf")
        config["model"] = {"path": "hf"}
        self.write("lora.json", config)
        self.sluice("train", "lora.json", *self.of("bytes"), "--set", "recipe.lora.rank=2", "--set",
                    "run.eval_every=1", "--set", "run.checkpoint_every=1", "--set",
                    "run.keep_last=0", "--steps", "2", "--out", "a", *self.samples)
        self.check("a", every=1, steps=2)

    def test_with_a_temperature_are_drawn_but_the_same_each_time(self):
        hot = ["--set", "samples.temperature=2"]
        for name in "ab":
            self.sluice(*self.train, "--out", name, *self.samples, *hot)
        texts = [[it["text"] for it in self.found(name)] for name in "ab"]
        self.assertEqual(texts[0], texts[1])
        self.sluice(*self.train, "--out", "cold", *self.samples)
        self.assertNotEqual(texts[0], [it["text"] for it in self.found("cold")])
        self.assertEqual(self.results("a"), self.results("cold"))

    def test_are_in_the_report_and_in_watch(self):
        self.sluice(*self.train, "--out", "a", *self.samples)
        self.sluice("report", "a", "-o", "report.html")
        page = (self.path / "report.html").read_text(encoding="utf-8")
        self.assertIn('"event":"sample"', page)
        self.assertIn('"prompt":"words, some"', page)
        self.assertNotIn("could not be read", self.sluice("report", "a", "-o", "b.html").stderr)
        self.assertIn("completed", self.sluice("watch", "a", "--plain").stdout)

    def test_have_a_line_in_the_plan(self):
        plan = self.sluice("plan", "run.json", *self.of("bytes"), *self.samples).stdout
        self.assertIn("sample texts", plan)

    def test_are_refused_before_the_work(self):
        def refused(text, *more, name="other.jsonl"):
            self.write(name, text)
            told = self.refused(*self.train, "--out", "a", "--set", f"samples.prompts={name}",
                                *more)
            self.assertFalse((self.path / "a").exists() and any((self.path / "a").glob("*.jsonl")))
            return told
        self.assertIn("has no prompt", refused("\n\n"))
        self.assertIn("line 2 is not",
                      refused('{"prompt": "a"}\n{"text": "b"}\n'))
        self.assertRegex(refused('{"prompt": ""}\n'), "line 1.*empty prompt")
        self.assertIn("more than 64 prompts", refused('{"prompt": "a"}\n' * 65))
        self.assertIn("has 17 tokens", refused("a" * 17, name="long.txt"))
        self.assertRegex(refused('{"prompt": "a"}\n', *self.of("unknown")), "tokenizer.*not known")
        self.assertIn("absent.txt", self.refused(*self.train, "--out", "a", "--set",
                                                 "samples.prompts=absent.txt"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
