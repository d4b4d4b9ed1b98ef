"""The breakdown of a step's time: `sluice profile`, flops_profiler and wall_clock_breakdown.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import re
import unittest

from sluice_program import HAS_ENGINE, Training

LAYERS, HIDDEN, TOKENS, VOCAB = 2, 32, 16, 64
ROWS = 2 * TOKENS  # per micro-batch


def forward_macs():
    """Multiply-adds of a micro-batch, per product; attention counts as if nothing were masked."""
    block = HIDDEN * 3 * HIDDEN + HIDDEN * HIDDEN + 2 * HIDDEN * 4 * HIDDEN
    scores = 2 * TOKENS * HIDDEN
    return ROWS * (LAYERS * (block + scores) + HIDDEN * VOCAB)


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Profile(Training):
    def profile(self, *arguments):
        result = self.sluice("profile", "run.json", "--steps", 3, "--warmup", 1, *arguments)
        self.assertEqual(os.listdir(self.path / "nvme"), [])
        return result

    def test_measures_phases_units_and_operators_and_says_what_holds_the_step(self):
        found = json.loads(self.profile("--json", "--trace", "trace.json").stdout)
        self.assertEqual((found["steps"], found["tokens_per_step"]), (3, ROWS))
        profile = found["profile"]
        phases = {name: phase["seconds"] for name, phase in profile["phases"].items()}
        for name in ("forward", "loss", "recompute", "backward", "gradient"):
            self.assertGreater(phases[name], 0, name)
        self.assertLessEqual(sum(phases.values()), 1.01 * profile["step_s"])
        units = {unit["unit"]: unit for unit in profile["units"]}
        self.assertEqual(list(units), ["embedding", "h.0", "h.1", "head"])
        for name in ("forward", "recompute", "backward"):
            of_units = sum(unit["phases"].get(name, {"seconds": 0})["seconds"]
                           for unit in units.values())
            self.assertAlmostEqual(of_units, phases[name], delta=1e-9)
        self.assertEqual(sum(unit["macs_per_token"] for unit in units.values()) * ROWS,
                         forward_macs())
        self.assertGreater(profile["limit_flops_per_s"], 0)
        self.assertGreater(found["moved"]["nvme_write_bytes"]["a_step"], 0)
        operators = {one["name"]: one for one in found["operators"]}
        self.assertIn("aten::mm", operators)
        self.assertFalse([name for name in operators if name.startswith("pass: ")])
        phases = found["by_phase"]
        self.assertEqual(list(phases), [it for it in ("forward", "loss", "recompute", "backward",
                                                      "gradient", "the rest") if it in phases])
        for name, one in operators.items():
            apart = [it for phase in phases.values() for it in phase if it["name"] == name]
            for member in ("calls", "seconds"):
                self.assertAlmostEqual(sum(it[member] for it in apart), one[member], delta=1e-9)
        for phase, product in (("forward", "addmm"), ("recompute", "addmm"), ("backward", "mm")):
            self.assertIn(f"aten::{product}", {one["name"] for one in phases[phase]}, phase)
        self.assertGreater(found["held_by"]["seconds"], 0)
        self.assertGreater(found["plan"]["step_s"], 0)
        self.assertTrue(all(one["step_s"] > 0 for one in found["what_if"]))
        recorded = json.loads((self.path / "trace.json").read_text(encoding="utf-8"))
        self.assertLessEqual({"aten::mm", "pass: forward"},
                             {event.get("name") for event in recorded["traceEvents"]})

    def test_shows_the_same_as_tables(self):
        shown = self.profile("-o", "profile.txt").stdout
        self.assertIn("profile: profile.txt", shown)
        text = (self.path / "profile.txt").read_text(encoding="utf-8")
        for words in (r"\A3 steps of 32 tokens on ", "of the speed of large matrix products",
                      r"(?m)^recompute ", r"(?m)^block x 2 ", r"(?m)^  aten::mm ",
                      r"(?m)^by phase, per step ", r"(?m)^backward +[\d.]+ ms +[\d.]+%$",
                      r"(?m)^NVMe written ", r"(?m)^limited by .*: [\d.]+% of the step$",
                      r"(?m)^plan: ", "predicted effect of changes"):
            self.assertRegex(text, words)
        self.assertRegex(self.profile("--units").stdout, r"(?m)^h\.1 ")
        self.assertIn("--force", self.refused("profile", "run.json", "-o", "profile.txt"))
        self.assertIn("one file", self.refused("profile", "run.json", "-o", "x", "--trace", "x"))
        self.assertIn("absent", self.refused("profile", "run.json", "--trace", "absent/t.json"))
        self.refused("profile", "run.json", "--steps", 0)

    def train(self, *settings, name="a", more=()):
        words = [word for setting in settings for word in ("--set", setting)]
        return self.sluice("train", "run.json", "--out", name, *words, *more)

    def test_prints_the_profile_of_the_step_that_deepspeeds_keys_name(self):
        shown = self.train("flops_profiler.enabled=true", "flops_profiler.profile_step=3",
                           "wall_clock_breakdown=true", "run.log_every=1")
        text = shown.stdout
        self.assertRegex(text, "step 3: 1 micro-batch.*2 x 16 tokens")
        macs, = re.findall(r"(?m)^fwd MACs per GPU.* ([\d.]+) KMACs$", text)
        self.assertAlmostEqual(float(macs), forward_macs() / 1e3, delta=0.01)
        for label in ("params of the model", "fwd latency", "bwd FLOPS per GPU", "iter latency",
                      "samples/second", "recompute", "await update", "  depth 2", "h.1"):
            self.assertRegex(text, rf"(?m)^{re.escape(label)}\b.* ")
        self.assertIn(", including recompute ", shown.stderr)
        for step in self.metrics("a"):
            self.assertGreater(step["recompute_ms"], 0)
            self.assertLessEqual(step["recompute_ms"], step["backward_ms"])
            self.assertLessEqual(step["await_params_ms"] + step["await_inputs_ms"],
                                 step["step_ms"])
            self.assertGreater(step["tflops_per_s"], 0)

    def test_writes_it_where_they_say_and_says_when_the_step_does_not_come(self):
        keys = ["flops_profiler.enabled=true", "flops_profiler.detailed=false"]
        shown = self.train(*keys, "flops_profiler.output_file=flops.txt")
        self.assertNotIn("FLOPs profile", shown.stdout)
        text = (self.path / "flops.txt").read_text(encoding="utf-8")
        self.assertIn("FLOPs profile", text)
        self.assertNotRegex(text, r"(?m)^h\.1 ")
        self.assertNotIn("recompute_ms", self.metrics("a")[0])
        shown = self.train(*keys, "flops_profiler.profile_step=9", name="b")
        self.assertIn("no step", shown.stderr)
        self.assertIn("no folder absent", self.refused(
            "train", "run.json", "--out", "c", "--set", keys[0], "--set",
            "flops_profiler.output_file=absent/flops.txt"))

    def test_traces_phases_of_units_steps_validation_and_checkpoints(self):
        self.train("run.eval_every=1", "run.checkpoint_every=2", "gradient_accumulation_steps=2",
                   more=["--trace", "2:3"])
        trace = json.loads((self.path / "a/trace.json").read_text(encoding="utf-8"))
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        named = {event["name"]: event["args"] for event in spans}
        of_run = [(event["name"], event["args"]["step"]) for event in spans
                  if event["cat"] == "run"]
        self.assertEqual(sorted(of_run), [("checkpoint", 2), ("step", 2), ("step", 3),
                                          ("validation", 2), ("validation", 3)])
        for phase in ("forward", "recompute", "backward"):
            self.assertEqual(
                {event["args"]["micro_batch"] for event in spans
                 if event["name"] == f"{phase} h.1"}, {0, 1})
        self.assertEqual(named["backward h.1"]["wave"], 0)
        self.assertEqual((named["adamw h.0"]["phase"], named["adamw h.0"]["unit"]),
                         ("adamw", "h.0"))


if __name__ == "__main__":
    unittest.main()
