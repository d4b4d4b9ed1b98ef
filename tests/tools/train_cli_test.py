"""`sluice train`: output, files and refusals.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import unittest
import unittest.mock

from sluice_program import HAS_ENGINE, SLUICE, Training


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Train(Training):
    def test_refuses_an_nvme_folder_that_is_missing_and_makes_none(self):
        # For example a typing error, or a drive that is not mounted.
        missing = self.path / "drives/nvme9/state"
        (self.path / "drives").mkdir()
        self.write("card.json", {**json.loads((self.path / "run.json").read_text()), "budget": {},
                                 "zero_optimization": {"stage": 3, "offload_optimizer": {
                                     "device": "nvme", "nvme_path": str(missing)}}})
        named = ["run.json", "--set", f'budget.nvme_paths=["{missing}"]']
        for words in (["train", *named, "--out", "a"], ["plan", *named], ["probe", *named],
                      ["tune", *named], ["train", "card.json", "--out", "a"], ["scrub", missing]):
            with self.subTest(command=words[:2]):
                told = self.refused(*words)
                self.assertIn(f"{missing} does not exist; {os.path.realpath(self.path)}/drives",
                              told)
                self.assertIn(f"mkdir -p {missing}", told)
                if "card.json" in words:
                    self.assertIn("zero_optimization.offload_optimizer.nvme_path: ", told)
                self.assertEqual(os.listdir(self.path / "drives"), [])
                self.assertFalse((self.path / "a").exists())
        (self.path / "drives/nvme9").write_text("no folder")
        self.assertIn("below a file", self.refused("plan", *named))
        # DeepSpeed's key is ignored if the tier is not on NVMe.
        self.sluice("train", "card.json", "--out", "a", "--set",
                    "zero_optimization.offload_optimizer.device=cpu")

    def test_closed_standard_streams_are_no_files_of_the_run(self):
        for close in ("<&- >&- 2>&-", "<&-", "2>&-"):
            subprocess.run(
                ["bash", "-c", f'exec "$0" train run.json --out a --overwrite {close}', SLUICE],
                cwd=self.path, capture_output=True, timeout=120, check=True)
            self.assertEqual((self.path / "a/lock").read_bytes(), b"", close)
            self.assertEqual([step["step"] for step in self.metrics("a")], [1, 2, 3, 4])

    def test_writes_a_line_of_metrics_for_each_step_and_leaves_the_drive_empty(self):
        shown = self.sluice("train", "run.json", "--out", "a", "--trace", "2:3")
        self.assertIn("tokens/s", shown.stdout)
        self.assertIn("host memory", shown.stderr)
        steps = self.metrics("a")
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4])
        for key in ("loss", "lr", "grad_norm", "tokens_per_s", "nvme_read_bytes", "host_rss_bytes"):
            self.assertIn(key, steps[0])
        self.assertGreater(sum(step["nvme_write_bytes"] for step in steps), 0)
        self.assertIsNotNone(steps[-1]["val_loss"])
        trace = json.loads((self.path / "a/trace.json").read_text(encoding="utf-8"))
        self.assertEqual({event["cat"] for event in trace["traceEvents"] if event["ph"] == "X"},
                         {"run", "compute", "waits", "AdamW", "NVMe read", "NVMe write"})
        self.assertEqual(os.listdir(self.path / "nvme"), [])
        again = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual(again["run"]["steps"], 4)

    def test_saves_the_same_bytes_again_and_evaluates_them_to_the_same_loss(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a.safetensors")
        self.sluice("train", "run.json", "--out", "b", "--save-weights", "b.safetensors",
                    "--set", "zero_optimization.offload_param.device=cpu",
                    "--set", "zero_optimization.offload_optimizer.device=cpu")
        self.assertEqual((self.path / "a.safetensors").read_bytes(),
                         (self.path / "b.safetensors").read_bytes())
        loss = float(self.sluice("eval", "run.json", "--weights",
                                 "a.safetensors").stdout.split()[1])
        told = json.loads(self.sluice("eval", "run.json", "--weights", "a.safetensors",
                                      "--json").stdout)
        self.assertAlmostEqual(told["loss"], loss, delta=1e-6)
        self.assertGreater(told["tokens"], 0)
        self.assertAlmostEqual(loss, self.metrics("a")[-1]["val_loss"], delta=1e-4)

    def test_says_where_the_weights_come_from(self):
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--save-weights",
                           "a.safetensors").stderr
        self.assertRegex(told, r"(?m)^weights: random, .*\d+ \(model\.init_seed\)")
        told = self.sluice("train", "run.json", "--out", "b", "--steps", "1", "--init-from",
                           "a.safetensors").stderr
        self.assertIn("weights: from a.safetensors (model.init_from)", told.splitlines())
        told = self.sluice("train", "a/config.json", "--out", "c", "--steps", "1").stderr
        self.assertIn("--resume=a/checkpoints/NAME", told)
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "2").stderr
        self.assertRegex(told, r"(?m)^weights: from a/checkpoints/step-0+1, ")

    def test_guesses_no_type_of_token_of_which_there_may_be_two(self):
        settings = json.loads((self.path / "run.json").read_text())
        del settings["data"]["dtype"]
        self.write("untold.json", settings)
        told = self.sluice("train", "untold.json", "--out", "a", "--steps", "1").stderr
        self.assertEqual(told.count("its tokens are read as uint16"), 1)
        large = ["untold.json", "--set", "model.vocab=70000"]
        for told in (self.refused("train", *large, "--out", "b"),
                     self.sluice("plan", *large).stderr):
            self.assertRegex(told, r"vocabulary of 70000.*uint16.*uint32.*\.json.*data\.dtype")
        self.sluice("train", *large, "--set", "data.dtype=uint16", "--out", "b", "--steps", "1")

    def test_says_what_has_changed_since_the_checkpoint(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        same = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "2", "--set",
                           "zero_optimization.offload_optimizer.device=cpu").stderr
        self.assertNotIn("changed since", same)
        told = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "3",
                           "--set", "optimizer.params.lr=0.01", "--set", "gradient_clipping=2",
                           "--set", "train_micro_batch_size_per_gpu=4",
                           "--set", "optimizer.params.weight_decay=0.5").stderr
        for change in ("optimizer.params.lr was 0.003 and is 0.01", "gradient_clipping was ",
                       "train_micro_batch_size_per_gpu was 2 and is 4", "weight_decay was "):
            self.assertIn("changed since the checkpoint: ", told)
            self.assertEqual(told.count(change), 1)
        (self.path / "text.bin").write_bytes(struct.pack("<8000H", *([7] * 8000)))
        said = self.refused("train", "run.json", "--out", "a", "--resume", "--steps", "4")
        self.assertIn("files of data.train", said)

    def test_says_that_nothing_is_learnt_at_a_rate_beyond_sense(self):
        llama = [word for one in ("preset=custom", "family=llama", "architecture=qwen3",
                                  "kv_heads=1", "head_dim=16", "ffn_multiplier=3")
                 for word in ("--set", f"model.{one}")]
        told = self.sluice("train", "run.json", "--out", "a", "--steps", 8, *llama,
                           "--set", "optimizer.params.lr=1e9")
        self.assertIn("reaches 1e+09", told.stderr)
        self.assertEqual(told.stderr.count("the gradient norm has been exactly 0"), 1)
        self.assertRegex(told.stdout, r"norm 0 +\d of 8 steps: ")
        told = self.sluice("train", "run.json", "--out", "b", "--steps", 4, *llama)
        self.assertNotRegex(told.stdout + told.stderr, "learning rate reaches|norm 0|exactly 0")

    def test_refuses_flags_that_would_do_nothing(self):
        for arguments in (["--steps", "-5"], ["--steps", "0"], ["--epochs", "0"],
                          ["--epochs", "-1"], ["--epochs", "nan"], ["--dtype", "bf16"], ["--force"],
                          ["--resume", "--init-from", "x"], ["--resume", "--resume=2"],
                          ["--trace", "100:200"], ["--trace", "3:5"], ["--trace", "0:1"],
                          ["--out="], ["--save-weights", ""]):
            with self.subTest(arguments=arguments):
                self.refused("train", "run.json", "--out", "a", *arguments)
                self.assertFalse((self.path / "a/metrics.jsonl").exists())

    def test_refuses_before_training_what_could_not_be_written_after_it(self):
        self.write("w.safetensors", "mine")
        (self.path / "folder.safetensors").mkdir()
        for path, says in (("w.bin", "must end in .safetensors"),
                           ("absent/w.safetensors", "no folder absent"),
                           ("run.json/w.safetensors", "run.json"),
                           ("folder.safetensors", "that is a folder"),
                           ("w.safetensors", "--force")):
            with self.subTest(path=path):
                self.assertIn(says, self.refused("train", "run.json", "--out", "a",
                                                 "--save-weights", path))
                self.assertFalse((self.path / "a").exists())
        self.assertEqual((self.path / "w.safetensors").read_text(), "mine")
        self.sluice("train", "run.json", "--out", "a", "--steps", "1", "--save-weights",
                    "w.safetensors", "--force")
        self.assertGreater((self.path / "w.safetensors").stat().st_size, 1000)
        self.sluice("train", "run.json", "--out", "b", "--steps", "1", "--save-weights",
                    "b/w.safetensors")

    def test_a_run_that_cannot_begin_costs_the_former_one_nothing(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        before = sorted(self.path.glob("a/**/*"))
        for arguments in (["--set", "data.train=[\"absent.bin\"]"], ["--set", "model.vocab=60"],
                          ["--set", "budget.cpu_gib=0.01"], ["--trace", "9:9"]):
            self.refused("train", "run.json", "--out", "a", "--overwrite", *arguments)
            self.assertEqual(sorted(self.path.glob("a/**/*")), before)

    def test_names_the_key_or_flag_of_a_file_that_is_missing(self):
        for arguments, key in ((["--set", "data.train=[\"absent\"]"], "data.train: "),
                               (["--set", "data.validation=[\"absent\"]"], "data.validation: "),
                               (["--init-from", "absent"], "model.init_from: ")):
            self.assertIn(key, self.refused("train", "run.json", "--out", "a", *arguments))
        self.assertIn("--weights: ", self.refused("eval", "run.json", "--weights", "absent"))

    def test_waits_for_no_pipe(self):
        os.mkfifo(self.path / "pipe.safetensors")
        self.refused("eval", "run.json", "--weights", "pipe.safetensors")
        self.refused("train", "run.json", "--out", "a", "--init-from", "pipe.safetensors")
        self.refused("train", "run.json", "--out", "a", "--save-weights", "pipe.safetensors",
                     "--force")

    def test_counts_every_millisecond_of_a_step_once(self):
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "8", "--set",
                           "run.eval_every=2")
        for step in self.metrics("a"):
            parts = sum(step[part] for part in ("forward_ms", "backward_ms", "update_exposed_ms"))
            self.assertLessEqual(parts, 1.001 * step["step_ms"])
        shares = [float(share) for share in re.findall(r"(\d+\.\d)%", told.stdout)]
        self.assertAlmostEqual(sum(shares[:4]), 100, delta=0.25)
        self.assertEqual(told.stderr.count("validation loss"), 4)
        self.assertNotIn("val ", told.stderr)

    def test_does_not_write_over_a_run(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "1")
        self.assertIn("--overwrite", self.refused("train", "run.json", "--out", "a"))
        self.sluice("train", "run.json", "--out", "a", "--steps", "2", "--overwrite")
        self.assertEqual(len(self.metrics("a")), 2)

    def test_says_what_to_do_without_a_part_to_validate_on(self):
        lacking = ["train", "run.json", "--out", "a", "--steps", "1", "--set",
                   "data.validation_fraction=auto", "--set", 'data.validation=["val.bin"]']
        self.assertRegex(self.refused(*lacking), r"val\.bin.*--set 'data\.validation=\[\]'")
        self.sluice(*lacking, "--set", "data.validation=[]")

    def test_refuses_what_cannot_be_with_a_sentence(self):
        for arguments, says in (
                (["--set", "data.train=[\"absent.bin\"]"], "absent.bin"),
                (["--set", "model.heads=3"], "heads"),
                (["--set", "model.vocab=60"], "text.bin"),
                (["--set", "budget.cpu_gib=0.01"], "missing"),
                (["--init-from", "absent.safetensors"], "absent.safetensors"),
                (["--trace", "x"], "x"),
                (["--dtype", "int8", "--save-weights", "w.safetensors"], "int8")):
            with self.subTest(arguments=arguments):
                out = "o" + str(abs(hash(str(arguments))))
                self.assertIn(says, self.refused("train", "run.json", "--out", out, *arguments))

    def test_shows_what_takes_the_memory_where_it_refuses(self):
        for devices in ([], ["--set", "zero_optimization.offload_optimizer.device=auto"]):
            with self.subTest(devices=devices):
                result = self.sluice("train", "run.json", "--out", f"o{len(devices)}", *devices,
                                     "--set", "budget.cpu_gib=0.01", code=2)
                self.assertRegex(result.stderr, r"host memory +\S+ +of 10\.\d+M")
                self.assertRegex(result.stderr, r"activations +\S+")
                self.assertIn("missing", result.stderr.splitlines()[-1])

    def test_warns_of_a_budget_above_the_machine_when_it_plans_and_when_it_trains(self):
        much = ["--set", "budget.cpu_gib=100000"]
        for command in (["plan", "run.json"], ["train", "run.json", "--out", "o"]):
            shown = self.sluice(*command, *much)
            self.assertEqual(shown.stderr.count("budget.cpu_gib asks for"), 1, command)

    def test_goes_on_decaying_what_it_decayed(self):
        decay = ["--set", "optimizer.params.weight_decay=0.1"]
        def decayed():
            config = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
            return config["optimizer"]["params"]["decayed"]
        self.sluice("train", "run.json", "--out", "a", "--steps", 1, *decay,
                    "--set", "optimizer.params.decayed=all")
        shown = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 2, *decay)
        self.assertIn("to all parameters", shown.stderr)
        self.assertEqual(decayed(), "all")
        shown = self.sluice("train", "a/config.json", "--out", "a", "--resume", "--steps", 3)
        self.assertNotIn("weight decay", shown.stderr)
        shown = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 4, *decay,
                            "--set", "optimizer.params.decayed=matrices")
        self.assertRegex(shown.stderr, "decayed was all.*matrices")
        self.assertEqual(shown.stderr.count("optimizer.params.decayed"), 1)
        self.assertEqual(decayed(), "matrices")

    def test_stops_at_a_gradient_that_is_not_finite_and_says_how_to_go_on(self):
        wild = ["--set", "optimizer.params.lr=1e30", "--set", "run.checkpoint_every=1"]
        stopped = self.sluice("train", "run.json", "--out", "a", *wild, code=1).stderr
        last = stopped.splitlines()[-1]
        self.assertRegex(last, r"step \d .*not finite, .*unit \S+ .*\(.*micro-batch 1 of 1, "
                               r"loss \S+, text\.bin .*tokens \d+")
        self.assertIn("--set run.non_finite_step=skip", last)
        self.assertRegex(last, "newest checkpoint .*a/checkpoints/step-")
        self.assertNotIn("--resume continues from there", last)
        # Resuming alone fails at the same step, as the message says; skipping passes it, up to the
        # limit.
        again = self.sluice("train", "run.json", "--out", "a", "--resume", *wild, code=1).stderr
        self.assertEqual(again.splitlines()[-1], last)
        skipped = self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", 20, *wild,
                              "--set", "run.non_finite_step=skip",
                              "--set", "run.max_skipped_steps=2", code=1).stderr
        self.assertEqual(skipped.count("The step is skipped"), 2)
        self.assertIn("The 2 steps", skipped.splitlines()[-1])
        self.assertEqual([step["skipped"] for step in self.metrics("a")][-2:], [True, True])

    def test_compares_its_steps_with_the_plan(self):
        cache = {"XDG_CACHE_HOME": str(self.path / "cache")}
        with unittest.mock.patch.dict(os.environ, cache):
            auto = ["--set", "zero_optimization.offload_optimizer.device=auto"]
            self.sluice("probe", "run.json")
            kept = self.path / "cache/sluice/speeds.json"
            if not kept.exists() or len(json.loads(kept.read_text("utf-8"))["measurements"]) < 3:
                self.skipTest("this machine is too busy to be measured")
            # Pretends that other programs disturbed the measurement.
            speeds = json.loads(kept.read_text(encoding="utf-8"))
            for one in speeds["measurements"]:
                for name in one["values"]:
                    one["values"][name] *= 1000 if one["what"] == "units" else 0.001
            kept.write_text(json.dumps(speeds), encoding="utf-8")
            shown = self.sluice("train", "run.json", "--out", "a", "--steps", 5, *auto)
            self.assertRegex(shown.stdout, r"median +[0-9.]+ ms \(0\.0\d+ of the plan\)")
            self.assertIn("differ from the plan", shown.stderr)
            self.assertIn("repeated next time", shown.stderr)
            self.assertEqual(json.loads(kept.read_text(encoding="utf-8"))["measurements"], [])

    SCHEDULE = {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto",
                "warmup_num_steps": "auto", "total_num_steps": "auto"}}

    def with_schedule(self, name="scheduled.json", **params):
        run = json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        run["scheduler"] = {**self.SCHEDULE, "params": {**self.SCHEDULE["params"], **params}}
        return self.write(name, run)

    def rates(self, name):
        return [step["lr"] for step in self.metrics(name)]

    def test_epochs_reach_the_schedule_and_the_kept_configuration(self):
        run = self.with_schedule()
        told = self.sluice("train", run, "--out", "a", "--epochs", "0.05").stderr
        rates = self.rates("a")
        self.assertIn(f"{len(rates)} steps: run.epochs 0.05 x ", told)
        self.assertEqual([step for step, rate in enumerate(rates) if rate == 0], [0, 1])
        self.assertEqual(max(rates), 0.003)  # after the warm-up
        self.assertLess(rates[-1], 0.001)
        kept = json.loads((self.path / "a/config.json").read_text(encoding="utf-8"))
        self.assertEqual((kept["run"]["epochs"], kept["run"]["steps"]), (0.05, "auto"))
        self.sluice("train", "a/config.json", "--out", "b")
        self.assertEqual(self.results("b"), self.results("a"))
        self.assertIn("is not above 0", self.refused("train", run, "--out", "c", "--epochs", "0"))
        self.assertIn("is less than 1", self.refused("train", run, "--out", "c", "--steps", "-5"))
        self.assertFalse((self.path / "c").exists())

    def test_a_run_that_is_made_longer_says_what_its_schedule_was_and_is(self):
        run = self.with_schedule()
        self.sluice("train", run, "--out", "a", "--steps", "12")
        frozen = self.with_schedule("frozen.json", warmup_num_steps=1, total_num_steps=12)
        said = self.refused("train", frozen, "--out", "a", "--resume", "--steps", "30")
        self.assertIn("rate of exactly 0", said)
        self.assertIn("--set scheduler.params.total_num_steps=auto", said)
        self.assertEqual(len(self.metrics("a")), 12)
        told = self.sluice("train", "a/config.json", "--resume", "--steps", "30").stderr
        self.assertRegex(told, r"rate of step 13 was \S+, .*0\.00")
        self.assertRegex(told, r"run\.steps was 12.*30")
        self.assertGreater(min(self.rates("a")[2:]), 0)
        self.assertNotIn("rate of step",
                         self.sluice("train", "a/config.json", "--resume").stderr)
        self.sluice("train", "run.json", "--out", "b", "--steps", "2")
        self.assertRegex(self.sluice("train", "run.json", "--out", "b", "--resume").stderr,
                         r"run\.steps was 2.*4;.*not change")

    def test_warns_of_steps_behind_the_end_of_the_schedule(self):
        run = self.with_schedule(total_num_steps=6, warmup_num_steps=2)
        told = self.sluice("train", run, "--out", "a", "--steps", "10").stderr
        self.assertEqual(self.rates("a").count(0) - 2, 3)
        self.assertRegex(told, "last 3 steps.*exactly 0")

    FP16 = ("--set", "bf16.enabled=false", "--set", "fp16.enabled=true")

    def test_a_fixed_loss_scale_that_always_overflows_is_no_success(self):
        too_much = (*self.FP16, "--set", "fp16.loss_scale=1e30")
        told = self.sluice("train", "run.json", "--out", "a", "--steps", "50", *too_much,
                           code=1).stderr
        self.assertIn("fp16.loss_scale", told.splitlines()[-1])
        self.assertEqual(len(self.metrics("a")), 5)
        told = self.sluice("train", "run.json", "--out", "b", *too_much, code=1).stderr
        self.assertIn("no step was applied", told.splitlines()[-1])
        self.sluice("train", "run.json", "--out", "b", "--resume", "--steps", "8", *self.FP16,
                    "--set", "fp16.loss_scale=64")
        self.assertEqual([step["skipped"] for step in self.metrics("b")], [True] * 4 + [False] * 4)

    def test_an_evaluation_without_a_finite_loss_is_no_success(self):
        self.sluice("train", "run.json", "--out", "a", "--save-weights", "a.safetensors")
        whole = bytearray((self.path / "a.safetensors").read_bytes())
        header = int.from_bytes(whole[:8], "little")
        values = (len(whole) - 8 - header) // 4
        (self.path / "a.safetensors").write_bytes(
            whole[:8 + header] + struct.pack(f"<{values}f", *([3e38, -3e38] * values)[:values]))
        result = self.sluice("eval", "run.json", "--weights", "a.safetensors", code=1)
        self.assertRegex(result.stdout, "loss -?nan")
        self.assertIn("loss is not finite", result.stderr.splitlines()[-1])
        # Weights that are not finite are named.
        whole[-4:] = struct.pack("<f", float("nan"))
        (self.path / "a.safetensors").write_bytes(whole)
        self.assertRegex(self.sluice("eval", "run.json", "--weights", "a.safetensors",
                                     code=1).stderr,
                         r"a\.safetensors: element \d+ .*not finite in fp32: ")

    def test_does_not_train_where_another_process_does(self):
        process = self.start("train", "run.json", "--out", "a", "--steps", "100000")
        self.wait_for_steps("a", 1)
        self.assertIn("another process",
                      self.refused("train", "run.json", "--out", "a", "--resume"))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)

    def test_names_the_step_and_the_units_in_which_two_runs_part(self):
        hashed = ["--set", "run.hash_units=true", "--set", "optimizer.params.lr=0.01"]
        self.sluice("train", "run.json", "--out", "a", *hashed)
        self.sluice("train", "run.json", "--out", "b", *hashed, "--set",
                    "placement.overlap_update=false")
        self.assertIn("4 steps are the same", self.sluice("diff", "a", "b").stdout)
        self.sluice("train", "run.json", "--out", "c", *hashed, "--set",
                    "optimizer.params.betas=[0.9, 0.99]")
        # In the first step, the bias correction cancels beta2.
        shown = self.sluice("diff", "a", "c", code=1).stdout
        self.assertRegex(shown, "step 2.*differs")
        self.assertIn("the update diverged", shown)
        self.refused("diff", "a", "absent")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
