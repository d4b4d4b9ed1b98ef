"""`sluice train` on several ranks of this machine, started as by a launcher.

Ranks with the same lanes write the same weights. Any number of ranks resumes a checkpoint of any
other. If a rank dies or fails, all of them end and name it. The program is the environment's
SLUICE.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import unittest

from rank_runs import RankRuns, free_port
from sluice_runs import SLUICE, WAIT_S


LLAMA = [f"--set=model.{setting}" for setting in (
    "preset=custom", "family=llama", "architecture=qwen3", "kv_heads=1", "head_dim=16",
    "ffn_multiplier=3", "dropout=0")]


class Ranks(RankRuns):
    def test_have_the_same_bits_and_go_on_on_any_number(self):
        for world in (1, 2, 4):
            self.train(world, "--out", f"run{world}", "--save-weights", f"{world}.safetensors")
        one = self.weights("1.safetensors")
        self.assertEqual(self.weights("2.safetensors"), one)
        self.assertEqual(self.weights("4.safetensors"), one)
        for world in (1, 2, 4):  # each rank's files, read as one checkpoint
            self.sluice("scrub", self.path / f"run{world}")
            self.sluice("export", self.path / f"run{world}", self.path / f"exported{world}")
            self.assertEqual(len(list(self.path.glob(f"run{world}/checkpoints/step-000000004/"
                                                     "master-*"))), world)
            self.assertEqual(self.weights(f"exported{world}/model.safetensors"),
                             self.weights("exported1/model.safetensors"))
        # They also serve as initial weights.
        evaluated = [self.sluice("eval", self.config, "--weights", weights,
                                 "--data", self.path / "text.bin").stdout
                     for weights in (self.path / "run4/checkpoints/step-000000004",
                                     self.path / "exported1")]
        self.assertEqual(*evaluated)
        losses = [[step["loss"] for step in self.metrics(f"run{world}")] for world in (1, 2, 4)]
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])
        for begun, world in ((4, 1), (4, 2), (1, 4), (2, 4)):
            told = self.train(world, "--out", f"run{begun}", "--resume=step-000000002",
                              "--set-aside-later", "--save-weights", "again.safetensors",
                              "--force", *self.on_nvme())
            self.assertIn("continuing from", told)
            self.assertNotIn("gradient_accumulation_steps was", told)
            self.assertEqual(self.weights("again.safetensors"), one, f"{begun} to {world}")
            for left in (self.path / f"run{begun}/checkpoints").glob("set-aside*"):
                subprocess.run(["rm", "-r", left], check=True)
        self.assertEqual(list((self.path / "drive").glob("*")), [])

    def test_have_the_same_bits_of_a_llama_in_waves_at_each_stage(self):
        steps = ["--steps", 20, "--set=train_batch_size=8", "--set=run.checkpoint_at_end=false",
                 "--set=run.checkpoint_every=0"]
        self.train(1, "--out", "one", *LLAMA, *steps, "--save-weights", "one.safetensors")
        for number, (world, more) in enumerate((
                (2, ["--set=zero_optimization.stage=0"]),
                (4, ["--set=zero_optimization.stage=1", "--set=placement.wave_micro_batches=1"]),
                (2, ["--set=zero_optimization.stage=2", "--set=placement.wave_micro_batches=2"]),
                (4, self.on_nvme()))):
            self.train(world, "--out", f"run{number}", *LLAMA, *steps, *more, "--save-weights",
                       f"{number}.safetensors")
            self.assertEqual(self.weights(f"{number}.safetensors"), self.weights("one.safetensors"),
                             more)

    def test_train_the_same_adapters_and_go_on_on_any_number(self):
        lora = [*LLAMA, "--set=recipe.lora.rank=4", "--set=recipe.lora.dropout=0.1",
                "--set=optimizer.params.lr=0.02", "--set=run.hash_units=true"]
        on_nvme = [*self.on_nvme(),
                   "--set=zero_optimization.stage3_param_persistence_threshold=0"]
        self.train(1, "--out", "run1", *lora, "--save-weights", "1.safetensors")
        one = self.weights("1.safetensors")
        losses = [step["loss"] for step in self.metrics("run1")]
        self.sluice("export", self.path / "run1", self.path / "exported1")
        shards = ["--set=zero_optimization.stage=3"]  # shards of the base
        for world, more in ((2, on_nvme), (4, shards)):
            self.train(world, "--out", f"run{world}", *lora, *more, "--save-weights",
                       f"{world}.safetensors")
            self.assertEqual(self.weights(f"{world}.safetensors"), one)
            self.assertEqual([step["loss"] for step in self.metrics(f"run{world}")], losses)
            self.sluice("export", self.path / f"run{world}", self.path / f"exported{world}")
            for name in ("adapter_model.safetensors", "adapter_config.json"):
                self.assertEqual(self.weights(f"exported{world}/{name}"),
                                 self.weights(f"exported1/{name}"))
        # The hashes agree for each unit.
        hashes = [[step["unit_hashes"] for step in self.metrics(f"run{world}")]
                  for world in (1, 2, 4)]
        self.assertEqual(len(hashes[0]), len(losses))
        self.assertTrue(any(int(part, 16) for text in hashes[0][-1].values()
                            for part in text.split(":")))
        self.assertEqual(hashes[1], hashes[0])
        self.assertEqual(hashes[2], hashes[0])
        for begun, world, more in ((4, 1, []), (1, 2, [*on_nvme, *shards])):
            told = self.train(world, "--out", f"run{begun}", "--resume=step-000000002",
                              "--set-aside-later", "--save-weights", "again.safetensors",
                              "--force", *lora, *more)
            self.assertIn("continuing from", told)
            self.assertEqual(self.weights("again.safetensors"), one, f"{begun} to {world}")
        self.assertEqual(list((self.path / "drive").glob("*")), [])
        # With another base they do not continue, on any number of ranks.
        ranks = self.start(2, "--out", "run4", "--resume", "--steps", 6, *lora,
                           "--set=model.init_seed=7")
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertEqual(ranks[0].returncode, 2, told)
        self.assertIn("other base weights", told[0])

    def test_have_the_same_bits_with_any_share_of_the_lanes(self):
        twelve = ["--set=run.lanes=12", "--set=train_batch_size=12"]
        self.train(1, "--out", "one", *twelve, "--save-weights", "one.safetensors")
        for world in (2, 3, 6):
            self.train(world, "--out", f"run{world}", *twelve, "--save-weights",
                       f"{world}.safetensors")
            self.assertEqual(self.weights(f"{world}.safetensors"), self.weights("one.safetensors"))
        # Five ranks cannot share them, so results may differ from there on, and a message says so.
        run = json.loads(self.config.read_text(encoding="utf-8"))
        del run["run"]["lanes"]
        self.config.write_text(json.dumps(run), encoding="utf-8")
        told = self.train(5, "--out", "run3", "--resume=step-000000002", "--set-aside-later",
                          "--set=train_batch_size=60")
        self.assertRegex(told, r"12 lanes.*5 ranks.*run\.lanes is 5")
        self.assertIn("last bits", told)

    def test_train_along_without_an_element(self):
        tiny = [*LLAMA, "--set=recipe.lora.rank=1", "--set=run.lanes=8", "--set=train_batch_size=8"]
        self.train(1, "--out", "one", *tiny, "--save-weights", "one.safetensors")
        for number, more in enumerate(([], self.on_nvme())):
            run = f"run{number}"
            self.train(8, "--out", run, *tiny, *more, "--save-weights", f"{run}.safetensors")
            parts = {len(list((self.path / run / "checkpoints/step-000000004").glob(f"{field}-*")))
                     for field in ("master", "exp_avg", "exp_avg_sq")}
            self.assertLess(max(parts), 8)  # the last rank has none
            self.assertEqual(self.weights(f"{run}.safetensors"), self.weights("one.safetensors"))
            self.train(1, "--out", run, *tiny, "--resume=step-000000002", "--set-aside-later",
                       "--save-weights", "again.safetensors", "--force")
            self.assertEqual(self.weights("again.safetensors"), self.weights("one.safetensors"))

    def test_have_the_same_bits_on_several_hosts(self):
        twelve = ["--set=run.lanes=12", "--set=train_batch_size=12"]
        self.train(1, "--out", "one", *twelve, "--save-weights", "one.safetensors")
        waves = ["--set=train_batch_size=24", "--set=run.rounds=2",
                 "--set=placement.wave_micro_batches=1"]
        self.train(1, "--out", "waves", *twelve, *waves, "--save-weights", "waves.safetensors")
        for number, (world, hosts, name, more) in enumerate((
                (4, 2, "one", []), (6, 2, "one", self.on_nvme()), (6, 3, "waves", waves))):
            self.train(world, "--out", f"run{number}", *twelve, *more, "--save-weights",
                       f"{number}.safetensors", hosts=hosts)
            self.assertEqual(self.weights(f"{number}.safetensors"),
                             self.weights(f"{name}.safetensors"), f"{world} on {hosts} hosts")
        self.train(1, "--out", "run1", *twelve, "--resume=step-000000002", "--set-aside-later",
                   "--save-weights", "again.safetensors", "--force")
        self.assertEqual(self.weights("again.safetensors"), self.weights("one.safetensors"))

    def test_a_rank_that_is_killed_ends_all_with_its_name(self):
        for world, hosts in ((4, 2), (3, 1)):
            ranks = self.start(world, "--out", "run", "--steps", 100000, f"--set=run.lanes={world}",
                               f"--set=train_batch_size={world}", "--set=run.checkpoint_every=0",
                               "--overwrite", hosts=hosts)
            self.wait_for(lambda: (self.path / "run/metrics.jsonl").exists())
            ranks[1].kill()
            begin = time.monotonic()
            told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
            self.assertLess(time.monotonic() - begin, 10)
            for rank in {*range(world)} - {1}:
                self.assertEqual(ranks[rank].returncode, 1, told[rank])
                self.assertIn("rank 1", told[rank])
            if hosts > 1:
                shutil.rmtree(self.path / "run")
        self.train(2, "--out", "run", "--resume", "--set=run.lanes=2", "--set=train_batch_size=2",
                   "--steps", 2)

    def test_a_rank_that_cannot_begin_is_named_and_costs_nothing(self):
        self.train(1, "--out", "run")
        before = sorted(path.name for path in (self.path / "run/checkpoints").iterdir())
        ranks = self.start(2, "--out", "run", "--overwrite", *self.on_nvme(),
                           file_limits={1: 20 * 1024})
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertNotEqual(ranks[0].returncode, 0)
        self.assertIn("rank 1", told[0])
        self.assertIn("File too large", told[0])
        self.assertEqual(
            sorted(path.name for path in (self.path / "run/checkpoints").iterdir()), before)

    def test_a_rank_that_sees_other_files_is_named_and_costs_nothing(self):
        other = self.path / "other"
        other.mkdir()
        run = json.loads(self.config.read_text(encoding="utf-8"))
        run["data"]["train"] = ["text.bin"]  # relative to each rank's working folder
        self.config.write_text(json.dumps(run), encoding="utf-8")
        tokens = (self.path / "text.bin").read_bytes()

        def elsewhere(*words):
            return self.start(2, *words, folders={1: other})

        def refusal(ranks):
            told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [2, 1], told)
            self.assertEqual(told[1], "")
            return told[0]

        (other / "text.bin").write_bytes(tokens)
        told = refusal(elsewhere("--out", "run"))
        self.assertRegex(told, "rank 1.*run/sluice-ranks")
        self.assertEqual([path.name for path in (self.path / "run").iterdir()], ["lock"])
        self.assertFalse((other / "run").exists())
        (other / "text.bin").write_bytes(tokens[2:] + tokens[:2])
        told = refusal(elsewhere("--out", self.path / "run"))
        self.assertRegex(told, r"data\.train.*rank 1 and rank 0")
        (other / "text.bin").write_bytes(tokens)
        for rank in elsewhere("--out", self.path / "run"):
            told = rank.communicate(timeout=WAIT_S)[1]
            self.assertEqual(rank.returncode, 0, told)

    def test_what_one_rank_cannot_read_of_a_checkpoint_is_told_with_the_one_before(self):
        self.train(2, "--out", "run")
        part = self.path / "run/checkpoints/step-000000004/master-00002-of-00002.safetensors"
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
        told = [rank.communicate(timeout=WAIT_S)[1]
                for rank in self.start(2, "--out", "run", "--resume", "--steps", "6")]
        self.assertRegex(told[0], f"rank 1: .*{part.relative_to(self.path)}: .* is damaged")
        self.assertIn("step-000000002. To continue", told[0])
        self.assertEqual(told[1], "")
        self.train(2, "--out", "run", "--resume=step-000000002", "--set-aside-later")

    def test_a_full_disk_of_one_rank_costs_the_checkpoint_of_all(self):
        self.train(1, "--out", "run", "--steps", 2)
        ranks = self.start(4, "--out", "run", "--resume", file_limits={2: 20 * 1024})
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [1, 0, 0, 0], told)
        self.assertRegex(told[0], "step 4.*not saved: rank 2: ")
        self.assertIn("File too large", told[0])
        self.assertIn("Training continues", told[0])
        self.assertEqual(self.checkpoints("run"), ["step-000000002"])
        self.train(2, "--out", "run", "--resume")
        self.assertEqual(self.checkpoints("run"), ["step-000000002", "step-000000004"])

    def test_a_rank_that_is_killed_in_a_save_leaves_the_checkpoint_before(self):
        for victim in (0, 1):
            run = f"run{victim}"
            ranks = self.start(2, "--out", run, "--steps", 100000, "--set=run.checkpoint_every=1")
            folder = self.path / run / "checkpoints"
            self.wait_for(lambda: list(folder.glob("step-*[0-9]")))

            def is_saving():  # all wait for the stopped rank
                ranks[1].send_signal(signal.SIGSTOP)
                time.sleep(0.1)
                if list(folder.glob("*.new")) and not list(folder.glob("*.new/checkpoint.json")):
                    return True
                ranks[1].send_signal(signal.SIGCONT)
                return False

            self.wait_for(is_saving)
            begun = {path.name for path in folder.glob("*.new")}
            ranks[victim].kill()
            ranks[1].send_signal(signal.SIGCONT)
            told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
            self.assertEqual(ranks[1 - victim].returncode, 1, told)
            self.assertIn(f"rank {victim}", told[1 - victim])
            left = {path.name for path in folder.glob("*.new")}
            self.assertEqual(left, begun if victim == 0 else set(), told)
            newest = max(path.name for path in folder.glob("step-*[0-9]"))
            self.sluice("scrub", self.path / run)
            step = int(newest[len("step-"):])
            self.assertIn(newest, self.train(1, "--out", run, "--resume", "--steps", step + 1))
            self.assertEqual(list(folder.glob("*.new")), [])

    def test_what_they_leave_is_a_run_like_any_other(self):
        run = json.loads(self.config.read_text(encoding="utf-8"))
        del run["train_batch_size"], run["run"]["lanes"]
        run["gradient_accumulation_steps"] = 2
        self.config.write_text(json.dumps(run), encoding="utf-8")
        self.train(2, "--out", "run")
        folder = self.path / "run"
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.assertEqual(stored["train_batch_size"], 4)
        self.assertEqual(stored["run"]["lanes"], 2)
        for command in ("config", "plan"):
            self.sluice(command, folder / "config.json")
        self.sluice("export", folder, self.path / "exported")
        # By the run's own file, a step has the same number of sequences on any number of ranks.
        self.config = folder / "config.json"
        told = self.train(1, "--resume", "--steps", 5)
        self.assertIn("continuing from", told)
        self.assertEqual(len(self.metrics("run")), 5)

    def test_an_interrupt_is_the_first_ranks_to_answer(self):
        ranks = self.start(2, "--out", "run", "--steps", 100000)
        metrics = self.path / "run/metrics.jsonl"
        self.wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0)
        for rank in reversed(ranks):
            rank.send_signal(signal.SIGTERM)
        told = [rank.communicate(timeout=WAIT_S)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [75, 75], told)
        self.assertIn("--resume continues from here", told[0])

    def test_are_started_by_the_program_itself(self):
        for name, ranks in ("one", 1), ("two", 2):
            self.sluice("train", self.config, "--out", self.path / name, "--ranks", ranks,
                        "--save-weights", self.path / f"{name}.safetensors")
        self.assertEqual(self.weights("one.safetensors"), self.weights("two.safetensors"))
        for number, code, more in ((signal.SIGINT, 75, []),
                                   (signal.SIGUSR1, 9, ["--signal-exit-code", 9])):
            out = f"stopped{code}"
            (ranks,) = self.start(1, "--out", out, "--ranks", 2, "--steps", 100000, *more)
            self.wait_for((self.path / out / "metrics.jsonl").exists)
            ranks.send_signal(number)
            told = ranks.communicate(timeout=WAIT_S)[1]
            self.assertEqual(ranks.returncode, code, told)
            self.assertIn("--resume continues from here", told)

    def test_that_the_user_asks_for_win_over_a_batch_script_of_slurms(self):
        name = socket.gethostname()
        batch = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0",
                 "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2",
                 "SLURM_JOB_NODELIST": name}
        for number, more in enumerate(({}, {"SLURM_STEP_ID": "0", "SLURM_STEPID": "0"})):
            done = subprocess.run(
                [SLUICE, "train", self.config, "--out", f"run{number}", "--ranks", "2"],
                cwd=self.path, env={**os.environ, **batch, **more}, check=False, text=True,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(list(self.path.glob(
                f"run{number}/checkpoints/step-000000004/master-*"))), 2)
            self.assertNotIn("this Slurm job", done.stderr)
        # Without --ranks and without a task of srun, it warns that it runs alone.
        done = subprocess.run([SLUICE, "train", self.config, "--out", "alone"], cwd=self.path,
                              env={**os.environ, **batch}, check=False, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 tasks",
                      done.stderr)
        # A task that srun started is one of its ranks, and starts none.
        task = {**batch, "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
        done = subprocess.run([SLUICE, "train", self.config, "--out", "run", "--ranks", "3"],
                              cwd=self.path, env={**os.environ, **task}, check=False, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, "--ranks.*SLURM_STEP_ID")

    def on_hosts(self, second, *words):
        """Uses this machine as two hosts; a script reaches the second one."""
        own = socket.gethostname()
        try:
            socket.getaddrinfo(own, 80)
        except OSError:
            self.skipTest(f"this machine does not know its own name, {own}")
        (self.path / "hosts").write_text(f"{own} slots=1\n\nsecond slots=2  # as one\n",
                                         encoding="utf-8")
        (self.path / "reach").write_text(f'export NCCL_HOSTID="$1"\n{second}\n', encoding="utf-8")
        (self.path / "elsewhere").mkdir(exist_ok=True)
        return subprocess.run(
            [SLUICE, "train", self.config, "--hostfile", "hosts", "--ssh", "sh reach",
             "--master-port", str(free_port()), *words], cwd=self.path, check=False, text=True,
            env={**os.environ, "NCCL_HOSTID": "first", "NCCL_TOLD": "a 'b"}, timeout=WAIT_S,
            stdin=subprocess.DEVNULL, capture_output=True)

    def test_are_started_on_the_hosts_of_a_hostfile(self):
        three = ["--set=run.lanes=3", "--set=train_batch_size=3"]
        self.train(1, "--out", "one", *three, "--save-weights", "one.safetensors")
        done = self.on_hosts('cd elsewhere\necho "$2" > told\nexec sh -c "$2"', *three,
                             "--out", "a b's", "--save-weights", "two.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.weights("two.safetensors"), self.weights("one.safetensors"))
        told = (self.path / "elsewhere/told").read_text(encoding="utf-8")
        self.assertIn("NCCL_TOLD", told)
        self.assertNotIn("NCCL_HOSTID", told)
        self.assertNotRegex(told, "SECRET|[0-9a-f]{64}")
        # Without the secret, a process on the other host cannot join.
        done = self.on_hosts('cd elsewhere\nexec sh -c "$2" < /dev/null', *three, "--out", "four")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("run's secret", done.stderr)
        # An unreachable host ends all ranks, and is named. The local host has to be the first.
        begin = time.monotonic()
        done = self.on_hosts("exit 255", *three, "--out", "three")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, "host second:.*exit code 255")
        self.assertLess(time.monotonic() - begin, 30)
        for hosts, why in (("other slots=1\nsecond slots=1\n", "not this host"),
                           ("\x1b[2Jother slots=1\nsecond slots=1\n",
                            r"is '\x1b[2Jother'"),
                           ("LocalHost slots=1\nb slots=1\n", "a different machine"),
                           ("one two\n", "line 1 of"),
                           (f"{socket.gethostname().swapcase()} slots=65000\nsecond slots=1\n",
                            "65000 ranks")):
            (self.path / "hosts").write_text(hosts, encoding="utf-8")
            refused = subprocess.run([SLUICE, "train", self.config, "--hostfile", "hosts"],
                                     cwd=self.path, check=False, capture_output=True, text=True)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(why, refused.stderr)
            self.assertNotIn("\x1b", refused.stderr)
        refused = subprocess.run([SLUICE, "train", self.config, "--hostfile", "elsewhere"],
                                 cwd=self.path, check=False, capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertIn("elsewhere", refused.stderr)
        self.assertIn("directory", refused.stderr)

    def test_of_another_host_have_bounds(self):
        """The starter of another host's ranks checks what the first host tells it."""
        host = {"SLUICE_STARTED_AS": "host", "RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "first", "MASTER_PORT": "29500"}
        for name, value in (("WORLD_SIZE", "1000001"), ("WORLD_SIZE", "1"), ("RANK", "3"),
                            ("RANK", "-1"), ("LOCAL_WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "0"),
                            ("LOCAL_WORLD_SIZE", "99999999999"), ("MASTER_PORT", "70000")):
            refused = subprocess.run(
                [SLUICE, "train", self.config, "--out", "run"], cwd=self.path, check=False,
                env={**os.environ, **host, name: value}, text=True, input="secret\n",
                capture_output=True, timeout=WAIT_S)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(name, refused.stderr)
        for secret in ("", "\n", "x" * 1000):
            refused = subprocess.run(
                [SLUICE, "train", self.config, "--out", "run"], cwd=self.path, check=False,
                env={**os.environ, **host}, text=True, input=secret, capture_output=True,
                timeout=WAIT_S)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn("run's secret", refused.stderr)

    def test_are_traced_in_one_file_and_counted_together(self):
        self.sluice("train", self.config, "--out", self.path / "run", "--ranks", 2, "--trace",
                    "2:3", *self.on_nvme())
        trace = json.loads((self.path / "run/trace.json").read_text(encoding="utf-8"))
        begin, end = trace["otherData"]["window_us"]
        names = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"]
                 if event["name"] == "process_name"}
        self.assertEqual(names, {1: "rank 0", 2: "rank 1"})
        for process in names:
            inside = [event for event in trace["traceEvents"] if event["pid"] == process
                      and event["ph"] == "X" and event["cat"] == "compute"
                      and begin - 1e5 < event["ts"] < end + 1e5]
            self.assertGreater(len(inside), 4)
            self.assertEqual({event["args"]["rank"] for event in inside}, {process - 1})
            self.assertLessEqual({"forward h.0", "recompute h.0", "backward h.0"},
                                 {event["name"] for event in inside})
        self.train(1, "--out", "one", *self.on_nvme())
        one, two = self.metrics("one")[-1], self.metrics("run")[-1]
        self.assertGreater(two["host_rss_bytes"], 1.5 * one["host_rss_bytes"])
        self.assertGreater(two["backward_ms"], 0)

    @unittest.skipIf(shutil.which("mpirun") is None, "no mpirun here")
    def test_are_started_by_mpi_and_speak_by_it(self):
        self.train(1, "--out", "one", "--save-weights", "one.safetensors")
        done = subprocess.run(
            ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", SLUICE, "train",
             str(self.config), "--out", "two", "--save-weights", "two.safetensors"],
            cwd=self.path, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=WAIT_S)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.weights("two.safetensors"), self.weights("one.safetensors"))

    def test_are_planned_together_from_what_their_host_has(self):
        run = json.loads(self.config.read_text(encoding="utf-8"))
        run["zero_optimization"] = {"stage": 3, "offload_param": {"device": "auto"},
                                    "offload_optimizer": {"device": "auto"}}
        run["model"] |= {"layers": 4, "hidden": 192}
        run["placement"] = {"record_elements": 65536}
        self.config.write_text(json.dumps(run), encoding="utf-8")
        # Not planned, so that this machine need not be measured for it.
        self.train(1, "--out", "one", "--save-weights", "1.safetensors", *(
            f"--set=zero_optimization.offload_{what}.device=cpu" for what in ("optimizer", "param")))
        told = self.train(2, "--out", "two", "--save-weights", "2.safetensors",
                          "--set=run.checkpoint_background=off")
        self.assertRegex(told, "plan: .* on 2 ranks")
        self.assertNotIn("buffers for optimizer state", told)
        self.assertEqual(self.weights("2.safetensors"), self.weights("1.safetensors"))
        # With 4 MiB less per rank, part of each rank's state goes to the drive.
        taken = re.search(r"host memory +([\d.]+)M", told).group(1)
        budget = 2 * (float(taken) - 4) / 1024
        told = self.train(2, "--out", "less", "--save-weights", "less.safetensors",
                          f"--set=budget.cpu_gib={budget}")
        self.assertIn("state on NVMe", told)
        self.assertIn("optimizer state in memory", told)
        self.assertEqual(self.weights("less.safetensors"), self.weights("1.safetensors"))
        # Only the first rank reports that nothing fits.
        told = self.train(2, "--out", "none", "--set=budget.cpu_gib=0.5", code=2)
        self.assertIn("each of 2 ranks", told)

    def test_what_cannot_be_is_said_before_the_work(self):
        told = self.train(3, "--out", "run", code=2)
        self.assertIn("train_batch_size 4", told)
        told = self.train(4, "--out", "run", "--set=run.lanes=6", "--set=train_batch_size=24",
                          code=2)
        self.assertIn("4 or 8", told)
        self.assertFalse((self.path / "run").exists())
        told = self.train(1, "--out", "run", "--gpus", 999, "--set=run.device=auto", code=2)
        self.assertRegex(told, "no CUDA code|--gpus 999, but this process sees ")
        two = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
        tuned = subprocess.run([SLUICE, "tune", str(self.config)], cwd=self.path,
                               env={**os.environ, **two}, check=False, stderr=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, text=True, timeout=WAIT_S)
        self.assertEqual(tuned.returncode, 2, tuned.stderr)
        self.assertIn("on one rank", tuned.stderr)
        half = subprocess.run([SLUICE, "train", str(self.config), "--out", "run"], cwd=self.path,
                              env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"}, check=False,
                              stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.assertEqual(half.returncode, 2, half.stderr)
        self.assertIn("LOCAL_RANK", half.stderr)


if __name__ == "__main__":
    unittest.main()
