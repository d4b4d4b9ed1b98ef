"""`sluice train --gpus`: several GPUs of this machine, with all placements of parameters and state.

They write the weights that one GPU writes, and resume each other's checkpoints. Skipped without two
GPUs. The program is the environment's SLUICE.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from sluice_runs import SLUICE, WAIT_S, SluiceRuns

LANES = 4
TYPES = {"bf16": [], "fp32": ["bf16.enabled=false"],
         "fp16": ["bf16.enabled=false", "fp16.enabled=true"]}
PLACES = {  # stage, parameters, optimizer state, and other settings
    "in RAM": (3, "cpu", "cpu", []),
    "on NVMe": (3, "nvme", "nvme", []),
    "shards on the GPUs": (3, "none", "none", []),
    "parameters whole on each": (1, "none", "none", []),
    "whole, and state in RAM": (2, "none", "cpu", []),
    "on three tiers": (3, "cpu", "auto", [
        'placement.optimizer_fractions={"gpu":0.4,"cpu":0.3,"nvme":0.3}']),
    "inputs of units in RAM": (3, "cpu", "cpu", ["placement.unit_inputs_to_cpu=on"]),
}


LLAMA = ["model.preset=custom", "model.family=llama", "model.architecture=qwen3",
         "model.kv_heads=2", "model.head_dim=32", "model.ffn_multiplier=3", "model.dropout=0"]


def gpus():
    if shutil.which("nvidia-smi") is None:
        return 0
    listed = subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True, text=True)
    return listed.stdout.count("GPU ")


SEVERAL = 4 if gpus() >= 4 else 2


@unittest.skipIf(gpus() < 2, "there are not two GPUs here")
class RanksOnGpus(SluiceRuns):
    def setUp(self):
        super().setUp()
        self.tokens("text.bin", 30000, seed=3)
        (self.path / "drive").mkdir()
        self.config = self.write_run({
            "train_batch_size": 2 * LANES, "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True}, "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
            "model": {"layers": 4, "hidden": 128, "heads": 4, "context": 64, "vocab": 512,
                      "dropout": 0.1},
            "data": {"train": [str(self.path / "text.bin")], "dtype": "uint16"},
            "budget": {"nvme_paths": [str(self.path / "drive")]},
            "run": {"steps": 20, "lanes": LANES, "checkpoint_every": 10,
                    "deterministic": True}})

    def train(self, count, name, settings, *words):
        """The weights that this number of GPUs writes."""
        weights = self.path / f"{name}.safetensors"
        self.sluice("train", self.config, "--out", self.path / name, "--gpus", count,
                    "--save-weights", weights, "--force",
                    *[f"--set={setting}" for setting in settings], *words)
        return weights.read_bytes()

    @staticmethod
    def placed(place):
        stage, params, state, more = PLACES[place]
        return [f"zero_optimization.stage={stage}",
                f"zero_optimization.offload_param.device={params}",
                f"zero_optimization.offload_optimizer.device={state}", *more]

    def test_have_the_bits_of_one_wherever_things_are(self):
        cases = 0
        for name, of_type in TYPES.items():
            one = self.train(1, f"one-{name}", [*of_type, *self.placed("in RAM")])
            for place in PLACES:
                with self.subTest(type=name, place=place):
                    got = self.train(SEVERAL, f"{name}-{cases}", [*of_type, *self.placed(place)])
                    self.assertEqual(got, one)
                    cases += 1
        print(f"{cases} cases of {SEVERAL} GPUs")
        self.assertEqual(list((self.path / "drive").glob("*")), [])

    def test_a_llama_has_the_bits_of_one_too(self):
        one = self.train(1, "one", [*LLAMA, *self.placed("in RAM")])
        for number, place in enumerate(PLACES):
            with self.subTest(place=place):
                got = self.train(SEVERAL, f"got{number}", [*LLAMA, *self.placed(place)])
                self.assertEqual(got, one)
        print(f"{len(PLACES)} cases of {SEVERAL} GPUs")

    def test_train_the_adapters_of_one_wherever_things_are(self):
        lora = [*LLAMA, "recipe.lora.rank=8", "recipe.lora.dropout=0.1",
                "zero_optimization.stage3_param_persistence_threshold=0"]
        cases = 0
        for bits in (16, 8, 4):
            of_base = [*lora, f"recipe.lora.base_bits={bits}",
                       f"recipe.lora.double_quant={str(bits == 4).lower()}"]
            one = self.train(1, f"one-{bits}", [*of_base, *self.placed("in RAM")])
            for place in PLACES:
                with self.subTest(bits=bits, place=place):
                    two = self.train(2, f"two-{cases}", [*of_base, *self.placed(place)])
                    self.assertEqual(two, one)
                    cases += 1
        waves = [*lora, *self.placed("in RAM"), "placement.wave_micro_batches=1"]
        self.assertEqual(self.train(2, "waves", waves), self.train(1, "one-waves", waves))
        print(f"{cases + 1} cases")
        self.assertEqual(list((self.path / "drive").glob("*")), [])

    def test_go_on_with_adapters_from_each_others_checkpoints(self):
        settings = [*LLAMA, "recipe.lora.rank=8", *self.placed("in RAM")]
        straight = self.train(1, "straight", settings)
        for begun, goes_on in ((1, 2), (2, 1), (2, 2)):
            name = f"{begun}-{goes_on}"
            self.train(begun, name, settings)
            again = self.train(goes_on, name, settings, "--resume=step-000000010",
                               "--set-aside-later")
            self.assertEqual(again, straight, name)

    def train_on_two_hosts(self, slots, name, settings):
        """The weights of this machine's GPUs as two hosts, which communicate through sockets."""
        first, second = (",".join(map(str, range(host * slots, (host + 1) * slots)))
                         for host in range(2))
        (self.path / "hosts").write_text(
            f"{socket.gethostname()} slots={slots}\nsecond slots={slots}\n", encoding="utf-8")
        (self.path / "reach").write_text(
            f'export NCCL_HOSTID="$1" CUDA_VISIBLE_DEVICES={second}\nexec sh -c "$2"\n',
            encoding="utf-8")
        weights = self.path / f"{name}.safetensors"
        done = subprocess.run(
            [SLUICE, "train", self.config, "--out", name, "--hostfile", "hosts", "--ssh",
             f"sh {self.path}/reach", "--save-weights", weights,
             *[f"--set={setting}" for setting in settings]], cwd=self.path,
            env={**os.environ, "NCCL_HOSTID": "first", "CUDA_VISIBLE_DEVICES": first}, check=False,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * WAIT_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return weights.read_bytes()

    def test_two_hosts_have_the_bits_of_one(self):
        settings = self.placed("shards on the GPUs")
        self.assertEqual(self.train_on_two_hosts(1, "two", settings),
                         self.train(1, "one", settings))

    @unittest.skipIf(gpus() < 4, "there are not four GPUs here")
    def test_two_hosts_of_two_have_the_bits_of_one(self):
        """Gradients are added on each host first."""
        cases = [(self.placed(place), []) for place in PLACES]
        cases += [(self.placed("in RAM"), [*more, "train_batch_size=24"]) for more in (
            ["run.lanes=12"], ["run.lanes=12", "run.rounds=2", "placement.wave_micro_batches=1"])]
        for number, (place, more) in enumerate(cases):
            with self.subTest(place=place, more=more):
                self.assertEqual(self.train_on_two_hosts(2, f"two{number}", place + more),
                                 self.train(1, f"one{number}", place + more))
        print(f"{len(cases)} cases")

    def test_have_the_bits_of_one_in_waves(self):
        for wave in (1, 2):
            waves = [*self.placed("in RAM"), f"placement.wave_micro_batches={wave}"]
            self.assertEqual(self.train(2, f"two{wave}", waves), self.train(1, f"one{wave}", waves))

    def test_have_the_bits_of_one_with_other_lanes_and_rounds(self):
        for lanes, rounds, wave in ((12, 1, 0), (6, 1, 1), (6, 2, 2), (2, 3, 2)):
            settings = [*self.placed("whole, and state in RAM"), "train_batch_size=12",
                        f"run.lanes={lanes}", f"run.rounds={rounds}",
                        f"placement.wave_micro_batches={wave}"]
            with self.subTest(lanes=lanes, rounds=rounds, wave=wave):
                name = f"{lanes}-{rounds}-{wave}"
                self.assertEqual(self.train(2, f"two-{name}", settings),
                                 self.train(1, f"one-{name}", settings))

    def test_go_on_from_each_others_checkpoints(self):
        settings = self.placed("shards on the GPUs")
        straight = self.train(1, "straight", settings)
        for begun, goes_on in ((1, SEVERAL), (SEVERAL, 1), (SEVERAL, 2)):
            name = f"{begun}-{goes_on}"
            self.train(begun, name, settings)
            again = self.train(goes_on, name, settings, "--resume=step-000000010",
                               "--set-aside-later")
            self.assertEqual(again, straight, name)

    def test_a_rank_that_is_killed_ends_all_with_its_name(self):
        run = subprocess.Popen(
            [SLUICE, "train", self.config, "--out", "run", "--gpus", "2", "--steps", "1000000",
             "--set=run.checkpoint_every=0"], cwd=self.path, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(run.kill)
        metrics = self.path / "run/metrics.jsonl"
        end = time.monotonic() + WAIT_S
        while not metrics.exists() or not metrics.read_text(encoding="utf-8"):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        os.kill(self.second_rank(run.pid), signal.SIGKILL)
        begin = time.monotonic()
        told = run.communicate(timeout=WAIT_S)[1]
        self.assertLess(time.monotonic() - begin, 10)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("rank 1", told)

    @staticmethod
    def second_rank(launcher):
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], check=True,
                                capture_output=True, text=True)
        return max(int(line) for line in listed.stdout.split())

    def test_more_than_there_are_is_refused_before_the_work(self):
        words = ["train", str(self.config), "--out", "run", "--gpus", str(gpus() + 1)]
        refused = subprocess.run([SLUICE, *words], cwd=self.path, check=False,
                                 capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn(f"sees {gpus()} GPUs", refused.stderr)
        on_cpu = subprocess.run([SLUICE, *words[:-1], "2", "--set=run.device=cpu"],
                                cwd=self.path, check=False, capture_output=True, text=True)
        self.assertEqual(on_cpu.returncode, 2)
        self.assertIn('run.device is "cpu"', on_cpu.stderr)
        self.assertFalse((self.path / "run").exists())


if __name__ == "__main__":
    unittest.main()
