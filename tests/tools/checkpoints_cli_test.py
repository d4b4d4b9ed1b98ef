"""`sluice train` that is interrupted, fails or resumes, and the checkpoints that it leaves.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import signal
import subprocess
import sys
import unittest

from sluice_program import HAS_ENGINE, Training


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Checkpoints(Training):
    def test_saves_and_ends_well_on_ctrl_c_and_goes_on_with_the_same_bits(self):
        for number, code, more in ((signal.SIGINT, 75, []), (signal.SIGTERM, 75, []),
                                   (signal.SIGUSR1, 75, []),
                                   (signal.SIGUSR2, 0, ["--signal-exit-code", "0"])):
            with self.subTest(signal=number):
                out = f"stopped{int(number)}"
                process = self.start("train", "run.json", "--out", out, "--steps", "100000",
                                     "--trace", "99999:100000", *more)
                self.wait_for_steps(out, 3)
                process.send_signal(number)
                shown, told = process.communicate(timeout=120)
                self.assertEqual(process.returncode, code, told)
                self.assertIn(b"tokens/s", shown)
                self.assertIn(b"interrupted; --resume continues from here", told)
                self.assertIn(b"no trace was written: the run ended before step 99999", told)
                self.assertFalse((self.path / out / "trace.json").exists())
                self.assertEqual(os.listdir(self.path / "nvme"), [])
                done = len(self.metrics(out))
                # A run that was not stopped, as long as this one is at its end.
                steps, whole = str(done + 20), f"whole{int(number)}"
                told = self.sluice("train", "run.json", "--out", out, "--resume", "--steps", steps,
                                   "--save-weights", out + ".safetensors").stderr
                self.assertIn(f"after step {done}", told)
                self.sluice("train", "run.json", "--out", whole, "--steps", steps,
                            "--save-weights", whole + ".safetensors")
                self.assertEqual(self.results(out), self.results(whole))
                self.assertEqual((self.path / (out + ".safetensors")).read_bytes(),
                                 (self.path / (whole + ".safetensors")).read_bytes())

    def test_stops_at_once_on_the_second_ctrl_c_without_harm(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "5")
        # The step is so long that it cannot end between the two.
        process = self.start("train", "run.json", "--out", "a", "--resume", "--steps", "100000",
                             "--set", "gradient_accumulation_steps=50000")
        told = b""
        for awaited in b"continuing from", b"interrupt again to stop immediately":
            while awaited not in told:
                told += os.read(process.stderr.fileno(), 4096) or self.fail(told)
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertIn("continuing from", self.sluice("train", "run.json", "--out", "a", "--resume",
                                                   "--steps", "8").stderr)

    def test_says_how_to_begin_again_where_nothing_is_saved(self):
        process = self.start("--io-watchdog", "9", "train", "run.json", "--out", "a b", "--steps",
                             "100000", "--set", "run.checkpoint_at_end=false")
        self.wait_for_steps("a b", 3)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[1].decode()
        self.assertEqual(process.returncode, 130, told)
        self.assertIn("no step is saved", told)
        self.assertIn("sluice --io-watchdog 9 train run.json --set run.checkpoint_at_end=false --out "
                      "'a b' --steps 100000 --overwrite\n", told)

    def test_a_run_that_has_no_step_left_replaces_no_trace(self):
        self.sluice("train", "run.json", "--out", "a", "--trace", "1:1")
        trace = (self.path / "a/trace.json").read_bytes()
        self.assertIn("left to trace", self.refused(
            "train", "run.json", "--out", "a", "--resume", "--trace", "1:1"))
        self.assertEqual((self.path / "a/trace.json").read_bytes(), trace)

    def test_keeps_checkpoints_on_the_way_and_goes_on_from_a_named_one(self):
        self.sluice("train", "run.json", "--out", "a", "--steps", "6", "--set",
                    "run.checkpoint_every=2", "--set", "run.keep_last=2")
        self.assertEqual(sorted(os.listdir(self.path / "a/checkpoints")),
                         ["step-000000004", "step-000000006"])
        whole = self.results("a")
        told = self.sluice("train", "run.json", "--out", "a", "--resume=step-000000004", "--steps",
                           "6", "--set-aside-later", "--set", "run.checkpoint_background=on",
                           "--set", "zero_optimization.offload_optimizer.device=cpu").stderr
        self.assertIn("after step 4", told)
        self.assertEqual(self.results("a"), whole)
        self.assertIn("all 6 steps",
                      self.sluice("train", "run.json", "--out", "a", "--resume", "--steps",
                                  "6").stderr)

    def test_a_full_disk_costs_a_checkpoint_and_not_the_run(self):
        small = self.path / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)],
                                 check=False, capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("only root can mount a small drive")
        self.addCleanup(subprocess.run, ["umount", "-l", str(small)], check=False)
        # Checkpoints have 350 KiB: two fit, and so does the third until the ballast is written.
        self.sluice("train", "run.json", "--out", "small/run", "--steps", "2", "--set",
                    "run.checkpoint_every=1", "--set", "run.keep_last=1")
        (small / "ballast").write_bytes(bytes(450 * 1024))
        shown = self.sluice("train", "run.json", "--out", "small/run", "--resume", code=1)
        self.assertIn("was not saved", shown.stderr)
        self.assertIn("disk was full", shown.stderr)
        self.assertEqual(len(self.metrics("small/run")), 4)
        self.assertEqual(os.listdir(small / "run/checkpoints"), ["step-000000002"])
        (small / "ballast").unlink()
        self.assertIn("after step 2",
                      self.sluice("train", "run.json", "--out", "small/run", "--resume").stderr)
        self.assertEqual(self.results("small/run")[0]["step"], 1)

    def test_a_drive_that_fails_ends_the_run_with_its_name_and_the_way_on(self):
        process = self.start("train", "run.json", "--out", "a", "--steps", "100000", "--set",
                             "run.checkpoint_every=2", "--set", "run.checkpoint_background=off")
        self.wait_for_steps("a", 5)
        for store in (self.path / "nvme").rglob("*"):
            if store.is_file() and store.stat().st_size > 65536:
                os.truncate(store, 4096)
        _, told = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 1, told)
        last = told.decode().splitlines()[-1]
        self.assertRegex(last, r"\Asluice: .*mounted at /.*checkpoints/step-\d+: --resume")
        self.sluice("train", "run.json", "--out", "a", "--resume", "--steps", "30")
        self.sluice("train", "run.json", "--out", "whole", "--steps", "30")
        self.assertEqual(self.results("a")[:30], self.results("whole")[:30])

    def test_starts_at_step_0_where_there_is_nothing_to_resume(self):
        told = self.sluice("train", "run.json", "--out", "a", "--resume").stderr
        self.assertIn("starting at step 0", told)
        self.assertEqual(len(self.metrics("a")), 4)

    def test_a_run_file_of_a_resumed_run_does_not_resume_another(self):
        self.sluice("train", "run.json", "--out", "a", "--resume")
        self.assertIn("is not empty", self.refused("train", "a/config.json", "--out", "a"))

    def test_refuses_a_checkpoint_that_is_damaged_or_another_runs(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=2")
        last = self.path / "a/checkpoints/step-000000004"
        damaged = sorted(last.glob("exp_avg-*.safetensors"))[0]
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 16
        damaged.write_bytes(content)
        result = self.sluice("train", "run.json", "--out", "a", "--resume", code=1)
        self.assertIn(damaged.name, result.stderr)
        self.assertIn("--resume=step-000000002 --set-aside-later", result.stderr)
        self.sluice("train", "run.json", "--out", "a", "--resume=step-000000002",
                    "--set-aside-later")
        self.assertEqual(len(self.metrics("a")), 4)
        self.assertIn("dropout", self.refused("train", "run.json", "--out", "a", "--resume",
                                              "--set", "model.dropout=0.3"))

    def test_lists_and_scrubs_checkpoints_and_names_what_is_damaged(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=2")
        rows = self.sluice("ls", "a", "--verify").stdout.splitlines()
        self.assertEqual([row.split()[1] for row in rows], ["step", "2", "4"])
        self.assertIn("intact", rows[2])
        self.assertIn(f"{self.metrics('a')[3]['loss']:.4f}", rows[2])
        self.assertEqual(self.sluice("scrub", "a").stdout.count("every checksum is right"), 2)
        weights = sorted((self.path / "a/checkpoints/step-000000004").glob("master-*"))[0]
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        shown = self.sluice("scrub", "a", "nvme", code=1).stdout
        self.assertIn("no state stores", shown, "what is damaged does not end the look-around")
        self.assertIn(weights.name, shown)
        self.assertIn("step-000000002: ", shown)
        self.assertIn("complete", self.sluice("ls", "a").stdout)
        self.assertIn(weights.name, self.sluice("ls", "a", "--verify", code=1).stdout)
        shown = self.sluice("ls", "a", "--verify", code=1).stdout.splitlines()
        self.assertLess(max(len(row) for row in shown[:3]), 80)
        found = json.loads(self.sluice("ls", "a", "--verify", "--json", code=1).stdout)
        self.assertEqual([(one["step"], one["state"]) for one in found["checkpoints"]],
                         [(2, "intact"), (4, "damaged")])
        self.assertIn(weights.name, found["checkpoints"][1]["problem"])
        weights.unlink()
        self.assertIn("damaged", self.sluice("ls", "a", code=1).stdout)
        self.refused("ls", "absent")
        self.refused("ls", "nvme")

    def test_a_copy_is_the_same_checkpoint_under_any_name(self):
        self.sluice("train", "run.json", "--out", "a", "--set", "run.checkpoint_every=2")
        said = self.sluice("copy", "a", "copies/of a", "--checkpoint", "2").stdout
        self.assertIn("copies/of a: the checkpoint a/checkpoints/step-000000002 of step 2", said)
        for name in os.listdir(self.path / "a/checkpoints/step-000000002"):
            self.assertEqual((self.path / "copies/of a" / name).read_bytes(),
                             (self.path / "a/checkpoints/step-000000002" / name).read_bytes(), name)
        self.sluice("export", "copies/of a", "hf", "--tokenizer", "bytes")
        told = self.sluice("train", "run.json", "--resume=copies/of a", "--out", "b").stderr
        self.assertIn("after step 2", told)
        whole = {one["step"]: one for one in self.results("a")}
        continued = self.results("b")
        self.assertEqual([one["step"] for one in continued], [3, 4])
        self.assertEqual(continued, [whole[3], whole[4]])
        again = self.refused("copy", "a", "copies/of a")
        self.assertIn("not empty", again)
        self.assertNotIn("interrupted", again)  # else a complete copy would be removed
        self.assertIn("this one is step-000000004",
                      self.refused("copy", "a", "copies/step-000000002"))
        self.assertEqual(os.listdir(self.path / "copies"), ["of a"])

    def test_a_copy_goes_where_a_link_leads(self):
        self.sluice("train", "run.json", "--out", "a")
        (self.path / "backup").mkdir()
        (self.path / "link").symlink_to(self.path / "backup")
        (self.path / "nowhere").symlink_to(self.path / "missing")
        self.sluice("copy", "a", "link")
        self.assertTrue((self.path / "link").is_symlink())
        self.assertIn("checkpoint.json", os.listdir(self.path / "backup"))
        self.assertIn("a link to a folder that is not there", self.refused("copy", "a", "nowhere"))

    def test_overwriting_leaves_nothing_to_resume_of_the_run_before(self):
        self.sluice("train", "run.json", "--out", "a")
        self.sluice("train", "run.json", "--out", "a", "--overwrite", "--steps", "1", "--set",
                    "run.checkpoint_at_end=false")
        self.assertIn("starting at step 0",
                      self.sluice("train", "run.json", "--out", "a", "--resume").stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[1:]])
