"""run.keep_best and early_stopping: which steps a run takes, and which checkpoints it keeps.

The oracle is the validation losses of a run without either, judged here by transformers' rule.
SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import sys
import unittest

from sluice_program import HAS_ENGINE, Training

EVERY = 2
# A rate so high that the loss rises and falls.
NOISY = ["--set", "optimizer.params.lr=0.05", "--set", f"run.eval_every={EVERY}", "--set",
         "run.eval_batches=1000", "--steps", "60"]


def judged(losses, patience, min_delta=0.0):
    """The number of evaluations that a run makes, and the index of the lowest loss."""
    best, lowest, without = None, None, 0
    for i, loss in enumerate(losses):
        without = 0 if best is None or best - loss > min_delta else without + 1
        if best is None or loss < best:
            best, lowest = loss, i
        if patience and without >= patience:
            return i + 1, lowest
    return len(losses), lowest


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Best(Training):
    def setUp(self):
        super().setUp()
        self.sluice("train", "run.json", "--out", "whole", *NOISY)
        self.whole = self.results("whole")
        self.losses = [step["val_loss"] for step in self.metrics("whole")
                       if step.get("val_loss") is not None]

    def patience(self, least=2):
        """One with which the run stops before its end, but after `least` evaluations."""
        for patience in range(1, len(self.losses)):
            made, lowest = judged(self.losses, patience)
            if least <= made < len(self.losses) - 1:
                return patience, made, lowest
        self.fail(f"no patience stops within {self.losses}")

    def checkpoints(self, name):
        return sorted(it for it in os.listdir(self.path / name / "checkpoints"))

    def events(self, name, kind):
        lines = (self.path / name / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [it for it in map(json.loads, lines) if it["event"] == kind]

    @staticmethod
    def checkpoint(evaluation):
        return f"step-{EVERY * (evaluation + 1):09d}"

    def test_stops_when_the_loss_no_longer_improves_and_keeps_the_best(self):
        patience, made, lowest = self.patience()
        told = self.sluice("train", "run.json", "--out", "a", *NOISY, "--set",
                           f"early_stopping.patience={patience}", "--set", "run.keep_last=1").stderr
        self.assertRegex(told, f"stopped early:.*{patience} evaluation")
        self.assertEqual(self.results("a"), self.whole[:EVERY * made], "and no bit differs")
        self.assertEqual(self.checkpoints("a"), sorted({self.checkpoint(lowest),
                                                        self.checkpoint(made - 1)}))
        (event,) = self.events("a", "early_stop")
        self.assertEqual((event["evaluations"], event["lowest_step"], event["step"]),
                         (patience, EVERY * (lowest + 1), EVERY * made))
        self.assertEqual([end["how"] for end in self.events("a", "end")], ["completed"])
        rows = json.loads(self.sluice("ls", "a", "--json").stdout)["checkpoints"]
        self.assertEqual([row["name"] for row in rows if row["best"]], [self.checkpoint(lowest)])
        self.assertIn("complete, best", self.sluice("ls", "a").stdout)
        # A resumed run has ended already; with more patience it continues as the whole one.
        told = self.sluice("train", "run.json", "--out", "a", "--resume", *NOISY, "--set",
                           f"early_stopping.patience={patience}").stderr
        self.assertIn("stopped early", told)
        self.assertEqual(len(self.metrics("a")), EVERY * made)
        self.sluice("train", "run.json", "--out", "a", "--resume", *NOISY, "--set",
                    "early_stopping.patience=1000")
        self.assertEqual(self.results("a"), self.whole)
        self.assertIn(self.checkpoint(judged(self.losses, 0)[1]), self.checkpoints("a"))

    def test_counts_on_after_a_resume(self):
        patience, made, _ = self.patience(least=3)
        stop_at = EVERY * (made - 1) + 1
        more = ["--set", f"early_stopping.patience={patience}", "--set", "run.keep_last=1"]
        self.sluice("train", "run.json", "--out", "a", *NOISY[:-2], "--steps", str(stop_at), *more)
        self.sluice("train", "run.json", "--out", "a", "--resume", *NOISY, *more)
        rows = self.results("a")
        # A run's last step is evaluated too, which the whole run did not do at that step.
        extra = self.metrics("a")[stop_at - 1]["val_loss"]
        losses = self.losses[:made - 1] + [extra] + self.losses[made - 1:]
        made_here, lowest_here = judged(losses, patience)
        steps = [EVERY * (i + 1) for i in range(made - 1)] + [stop_at] + [
            EVERY * (i + 1) for i in range(made - 1, len(self.losses))]
        self.assertEqual(rows, self.whole[:steps[made_here - 1]])
        self.assertIn(f"step-{steps[lowest_here]:09d}", self.checkpoints("a"))

    def test_min_delta_asks_for_more_than_any_improvement(self):
        made, _ = judged(self.losses, 2, min_delta=100)
        self.assertEqual(made, 3)
        self.sluice("train", "run.json", "--out", "a", *NOISY, "--set",
                    "early_stopping.patience=2", "--set", "early_stopping.min_delta=100")
        self.assertEqual(len(self.metrics("a")), EVERY * made)

    def test_keep_last_never_removes_the_best_nor_does_a_resume_that_forgets_it(self):
        lowest = judged(self.losses, 0)[1]
        self.sluice("train", "run.json", "--out", "a", *NOISY, "--set", "run.keep_best=true",
                    "--set", "run.keep_last=1")
        self.assertEqual(self.results("a"), self.whole, "saves change no bit")
        best = self.checkpoint(lowest)
        self.assertEqual(self.checkpoints("a"), sorted({best, "step-000000060"}))
        told = self.sluice("train", "run.json", "--out", "a", "--resume", *NOISY[:-2], "--steps",
                           "62", "--set", "run.checkpoint_every=1").stderr
        self.assertIn("--set run.keep_best=false", told)
        if self.metrics("a")[61]["val_loss"] < min(self.losses):
            best = "step-000000062"
        self.assertIn(best, self.checkpoints("a"))
        self.sluice("train", "run.json", "--out", "a", "--resume", *NOISY[:-2], "--steps", "64",
                    "--set", "run.keep_best=false")
        self.assertEqual(self.checkpoints("a"), ["step-000000064"])

    def test_commands_take_the_best_by_name(self):
        self.sluice("train", "run.json", "--out", "a", *NOISY, "--set", "run.keep_best=true")
        best = self.checkpoint(judged(self.losses, 0)[1])
        for number, of_best in enumerate((["a/best"], ["a", "--checkpoint", "best"])):
            self.sluice("export", of_best[0], f"hf{number}", *of_best[1:])
        self.sluice("export", f"a/checkpoints/{best}", "expected")
        expected = (self.path / "expected/model.safetensors").read_bytes()
        for number in range(2):
            self.assertEqual((self.path / f"hf{number}/model.safetensors").read_bytes(), expected)
        evaluated = json.loads(self.sluice("eval", "run.json", "--weights", "a/best", "--batches",
                                           "1000", "--json").stdout)
        self.assertAlmostEqual(evaluated["loss"], min(self.losses), places=5)
        text = self.sluice("generate", "a/best/", "--prompt", "12", "--tokens", "4", "--tokenizer",
                           "bytes", "--temperature", "0").stdout
        self.assertEqual(text, self.sluice("generate", f"a/checkpoints/{best}", "--prompt", "12",
                                           "--tokens", "4", "--tokenizer", "bytes",
                                           "--temperature", "0").stdout)
        self.assertIn("after step", self.sluice("train", "run.json", "--out", "b",
                                                f"--resume=a/checkpoints/{best}", *NOISY).stderr)

    def test_says_what_is_missing(self):
        self.assertIn("set run.eval_every", self.refused(
            "train", "run.json", "--out", "a", "--set", "early_stopping.patience=2"))
        self.assertIn("set data.validation", self.refused(
            "train", "run.json", "--out", "a", "--set", "run.keep_best=true", "--set",
            "run.eval_every=2", "--set", "data.validation_fraction=0"))
        self.sluice("train", "run.json", "--out", "a", "--steps", "2", "--set",
                    "data.validation_fraction=0")
        self.assertIn("no best one",
                      self.refused("export", "a/best", "hf"))
        self.assertIn("there is no", self.refused("export", "absent/best", "hf"))

    def test_the_best_checkpoint_may_be_written_by_several_ranks(self):
        patience, _, _ = self.patience()
        self.sluice("train", "run.json", "--out", "a", *NOISY, "--ranks", "2", "--set",
                    f"early_stopping.patience={patience}", "--set",
                    "train_micro_batch_size_per_gpu=1", "--set", "run.keep_last=1")
        losses = [it["val_loss"] for it in self.metrics("a") if it.get("val_loss") is not None]
        self.assertEqual(len(losses), judged(losses, patience)[0], "all ranks stop there")
        self.assertIn(self.checkpoint(judged(losses, patience)[1]), self.checkpoints("a"))
        self.assertEqual([end["how"] for end in self.events("a", "end")], ["completed"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
