"""Checkpoints in place, compared with checkpoints of files: the same bits after a kill, an export and a
copy. Also what happens to a store whose checkpoint is gone, moved, shared or damaged.

The program is the environment's SLUICE.
"""

import json
import os
import re
import shutil
import subprocess
import unittest

from sluice_runs import SLUICE, WAIT_S, Running, SluiceRuns

STEPS = 8
PRECISIONS = {
    "bf16": {"bf16": {"enabled": True}},
    "bf16 moments": {"bf16": {"enabled": True},
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "moments": "bf16"}}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}},
    "fp32": {},
}


class InPlace(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 4000, seed=8)

    def run_file(self, precision="bf16", device="nvme"):
        """With the device auto, 0.4 of the state is in RAM."""
        self.write_run({
            "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
            "zero_optimization": {"stage": 3, "sub_group_size": 4000,
                                  "offload_param": {"device": "nvme"},
                                  "offload_optimizer": {"device": device},
                                  "stage3_param_persistence_threshold": 0},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64,
                      "dropout": 0.1},
            "data": {"train": ["text.bin"], "dtype": "uint16"},
            "run": {"steps": STEPS, "device": "cpu", "cpu_threads": 1, "checkpoint_every": 2},
            **({"placement": {"optimizer_fractions": {"cpu": 0.4, "nvme": 0.6}}}
               if device == "auto" else {}),
            "budget": {"nvme_paths": ["nvme"]}, **PRECISIONS[precision]})

    def ended(self, *arguments):
        return subprocess.run([SLUICE, *map(str, arguments)], cwd=self.path, check=False,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=WAIT_S)

    def told(self, *arguments, fails=False):
        done = self.ended(*arguments)
        self.assertEqual(done.returncode != 0, fails, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def train(self, out, *more, in_place=True, **kind):
        return self.told("train", "run.json", "--out", out, *more, *(
            ("--set", "run.checkpoint_in_place=true") if in_place else ()), **kind)

    def endless(self, out, *settings):
        """A run that lasts until it is stopped."""
        sets = [word for setting in ("run.checkpoint_in_place=true", "run.steps=1000000", *settings)
                for word in ("--set", setting)]
        return Running(subprocess.Popen(
            [SLUICE, "train", "run.json", "--out", out, *sets], cwd=self.path,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))

    def killed_after(self, step, out):
        """Trains, and is killed once the step's checkpoint is there."""
        running = self.endless(out, "run.checkpoint_minutes=0")
        running.wait_for_match(rf"saved \S*step-0*{step} ")
        running.process.kill()
        running.end()

    def losses(self, out):
        return {line["step"]: line["loss"] for line in self.metrics(out)}

    def same_results(self, out, of="whole"):
        lines = self.losses(of)
        mine = self.losses(out)
        self.assertEqual({step: mine[step] for step in lines}, lines)

    def weights(self, run):
        folder = self.path / f"{run.replace('/', '-')}-weights"
        self.told("export", run, folder, "--dtype", "fp32")
        weights = (folder / "model.safetensors").read_bytes()
        shutil.rmtree(folder)
        return weights

    def stores(self):
        return sorted(os.listdir(self.path / "nvme"))

    def checkpoints(self, out):
        return sorted(os.listdir(self.path / out / "checkpoints"))


class SameBits(InPlace):
    def test_as_checkpoints_of_files_after_a_kill_in_every_precision(self):
        for precision in PRECISIONS:
            for device in ("nvme", "auto"):
                with self.subTest(precision=precision, device=device):
                    self.run_file(precision, device)
                    self.train("whole", in_place=False)
                    self.killed_after(4, "run")
                    told = self.train("run", "--resume")
                    self.assertIn("keeps its placement", told)
                    self.assertRegex(told, r"saved \S*step-000000008 \(.*, and .* in place; ")
                    self.same_results("run")
                    self.assertEqual(self.weights("run"), self.weights("whole"))
                    self.assertEqual(self.checkpoints("run"), ["step-000000008"])
                    self.assertEqual(len(self.stores()), 1)
                    for name in ("whole", "run"):
                        shutil.rmtree(self.path / name)
                    for name in self.stores():
                        shutil.rmtree(self.path / "nvme" / name)

    def test_of_a_copy_which_any_placement_resumes(self):
        self.run_file()
        self.train("whole", in_place=False)
        self.train("run", "--steps", "4")
        self.told("copy", "run", "copy")
        self.assertEqual(self.weights("run"), self.weights("copy"))
        shutil.rmtree(self.path / "nvme" / self.stores()[0])  # the copy does not need it
        told = self.train("other", f"--resume={self.path / 'copy'}", "--set",
                          "zero_optimization.offload_optimizer.device=cpu", in_place=False)
        self.assertIn("after step 4", told)
        whole = self.losses("whole")
        self.assertEqual(self.losses("other"), {step: whole[step] for step in range(5, STEPS + 1)})
        self.assertEqual(self.weights("other"), self.weights("whole"))

    def test_by_a_signal_and_by_other_commands(self):
        self.run_file()
        self.train("whole", in_place=False)
        running = self.endless("run", "run.checkpoint_every=0", "run.log_every=1")
        running.wait_for_more_steps()
        running.process.terminate()
        self.assertEqual(running.end(), 75, running.text)
        step = int(re.search(r"saved \S*step-(\d+) ", running.text).group(1))
        listed = self.told("ls", "run", "--verify")
        self.assertIn(f"step-{step:09d}", listed)
        self.told("scrub", "run")
        self.train("run", "--resume", "--steps", str(step + 2))
        self.told("diff", "run", "run")


class Stores(InPlace):
    def test_are_neither_replaced_nor_swept_while_a_checkpoint_is_in_them(self):
        self.run_file()
        self.train("run", "--steps", "4")
        store = self.stores()
        before = self.weights("run")
        self.told("scrub", "nvme", "--remove-leftovers")
        self.train("other", "--steps", "2", in_place=False)  # sweeps the drive, too
        self.assertEqual(self.stores(), store)
        self.assertEqual(self.weights("run"), before)
        # Its checkpoint was removed by hand: nothing is certain, so nothing is done.
        shutil.rmtree(self.path / "run")
        told = self.train("run", fails=True)
        self.assertIn(store[0], told)
        self.assertIn("if it is not needed, remove the folder", told)
        self.assertEqual(self.stores(), store)
        name = store[0].removeprefix("sluice-")
        self.told("scrub", "nvme", "--run", name, "--remove")
        self.assertEqual(self.stores(), [])
        self.train("run", "--steps", "2")

    def test_that_were_never_frozen_are_those_of_a_killed_run(self):
        self.run_file()
        self.train("whole", in_place=False)
        running = self.endless("run", "run.checkpoint_every=0", "run.log_every=1")
        running.wait_for_more_steps()
        running.process.kill()
        running.end()
        self.train("run", "--resume")
        self.same_results("run")

    def test_of_a_run_that_was_moved_or_copied_are_only_read(self):
        self.run_file()
        self.train("whole", in_place=False)
        self.train("run", "--steps", "4")
        store = self.stores()
        shutil.copytree(self.path / "run", self.path / "twin")
        told = self.train("twin", "--resume")
        self.assertNotIn("keeps its placement", told)
        self.same_results("twin")
        self.assertEqual(len(self.stores()), 2)
        self.train("run", "--resume")  # the original lost nothing
        self.same_results("run")
        self.assertIn(store[0], self.stores())

    def test_belong_to_a_folder_and_not_to_its_name(self):
        self.run_file()
        self.train("whole", in_place=False)
        self.train("run/", "--steps", "2")
        store = self.stores()
        self.assertIn("keeps its placement", self.train("./run", "--resume", "--steps", "4"))
        self.assertEqual(self.stores(), store)
        # A copy with the same relative name, elsewhere.
        there = self.path / "there"
        there.mkdir()
        shutil.copytree(self.path / "run", there / "run")
        shutil.copy(self.path / "run.json", there)
        (there / "text.bin").symlink_to(self.path / "text.bin")
        drives = self.path / "nvme"
        done = subprocess.run(
            [SLUICE, "train", "run.json", "--out", "run", "--resume", "--set",
             f'budget.nvme_paths=["{drives}"]'], cwd=there, check=False, capture_output=True,
            text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.stores()), 2)
        self.told("scrub", "run")
        self.train("run", "--resume")
        self.same_results("run")

    def test_leave_checkpoints_of_files_as_they_are(self):
        self.run_file()
        self.train("run", "--steps", "4", "--set", "run.keep_last=0", in_place=False)
        self.train("run", "--resume")
        self.assertEqual(self.checkpoints("run"),
                         ["step-000000002", "step-000000004", "step-000000008"])
        self.told("ls", "run", "--verify")

    def test_keep_a_later_checkpoint_from_being_overwritten(self):
        self.run_file()
        self.train("run", "--steps", "2")
        older = self.path / "run/checkpoints/step-000000002"
        shutil.copytree(older, self.path / "kept")
        self.train("run", "--resume", "--steps", "3")
        shutil.copytree(self.path / "kept", older)  # as if it had not been removed
        told = self.train("run", "--resume=step-000000002", "--set-aside-later", fails=True)
        self.assertIn("sluice copy", told)
        self.assertEqual(self.checkpoints("run"), ["step-000000002", "step-000000003"])
        self.told("scrub", "run")

    def test_give_way_to_a_run_that_overwrites_theirs(self):
        self.run_file()
        self.train("whole", in_place=False)
        for in_place in (True, False):
            with self.subTest(in_place=in_place):
                self.train("run", "--steps", "2")
                store = self.stores()
                before = self.weights("run")
                self.train("run", "--overwrite", "--set", "budget.cpu_gib=0.01", fails=True)
                self.assertEqual((self.stores(), self.weights("run")), (store, before))
                self.train("run", "--overwrite", in_place=in_place)
                self.same_results("run")
                self.assertEqual(self.stores(), store if in_place else [])
                self.assertEqual(self.weights("run"), self.weights("whole"))
                shutil.rmtree(self.path / "run")
                for name in self.stores():
                    shutil.rmtree(self.path / "nvme" / name)

    def test_of_another_folder_stay_when_a_copy_of_their_run_is_overwritten(self):
        self.run_file()
        self.train("run", "--steps", "2")
        store = self.stores()
        before = self.weights("run")
        shutil.copytree(self.path / "run", self.path / "twin")
        self.train("twin", "--overwrite", "--steps", "1")
        self.assertIn(store[0], self.stores())
        self.assertEqual(self.weights("run"), before)

    def test_that_are_gone_or_damaged_are_named(self):
        self.run_file()
        self.train("run", "--steps", "4")
        store = self.path / "nvme" / self.stores()[0]
        away = self.path / "away"
        store.rename(away)
        for command in (["train", "run.json", "--out", "run", "--resume", "--set",
                         "run.checkpoint_in_place=true"],
                        ["export", "run", "exported"], ["copy", "run", "copied"]):
            told = self.told(*command, fails=True)
            self.assertIn(str(store.name), told)
        self.assertFalse((self.path / "exported" / "config.json").exists())
        away.rename(store)
        records = store / "records"
        original = records.read_bytes()
        # Every page of the file in turn would take minutes: a few of each place.
        verdicts = set()
        for page in range(0, len(original) // 4096, 3):
            damaged = bytearray(original)
            damaged[page * 4096 + 100] ^= 1
            records.write_bytes(damaged)
            done = self.ended("scrub", "run")
            self.assertIn(done.returncode, (0, 1), done.stdout + done.stderr)
            verdicts.add(done.returncode)
        self.assertEqual(verdicts, {0, 1})  # of the places that hold the checkpoint, and the others
        records.write_bytes(original)
        self.told("scrub", "run")


class Plans(InPlace):
    def test_count_both_places(self):
        self.run_file()

        def parts(*more):
            plan = self.ended("plan", "run.json", "--json", *more)
            self.assertEqual(plan.returncode, 0, plan.stderr)
            return json.loads(plan.stdout)["tiers"]["nvme"]["parts"]
        self.assertGreater(
            parts("--set", "run.checkpoint_in_place=true")["optimizer state in two places"],
            2 * parts()["optimizer state"])


if __name__ == "__main__":
    unittest.main()
