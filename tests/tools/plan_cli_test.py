"""`sluice plan`: plans, refusals, and what a run says of its own.

SLUICE is the program; SLUICE_HAS_ENGINE=1 when it was built with LibTorch.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from sluice_program import HAS_ENGINE, Program

ROOT = Path(__file__).resolve().parents[2]
CARD = ["--gpu-gib", 24, "--cpu-gib", 110, "--nvme-gib", 500, "--ram-gb-per-s", 80,
        "--drive-read-gb-per-s", 6, "--drive-write-gb-per-s", 4]
BASES = {"qwen3_0.6b": "qwen3-0.6b", "qwen3_8b_24gb": "qwen3-8b", "llama3_8b_24gb": "llama3.1-8b",
         "mistral_7b_24gb": "mistral-7b", "qwen3.5_9b_24gb": "qwen3.5-9b", "phi4_24gb": "phi4-14b",
         "gemma3_12b_24gb": "gemma3-12b",
         "qwen3_32b_lora_24gb": "qwen3-32b"}


@unittest.skipUnless(HAS_ENGINE, "built without LibTorch")
class Plan(Program):
    """The machine is measured once for all tests."""

    @classmethod
    def setUpClass(cls):
        cache = tempfile.TemporaryDirectory(prefix="sluice-cli-", dir=os.getcwd())
        cls.addClassCleanup(cache.cleanup)
        environment = unittest.mock.patch.dict(os.environ, XDG_CACHE_HOME=cache.name)
        environment.start()
        cls.addClassCleanup(environment.stop)

    def test_plans_every_configuration_for_a_card_of_24_gib(self):
        for file in sorted((ROOT / "configs").glob("*.json")):
            with self.subTest(file=file.name):
                base = BASES.get(file.stem)  # as if the named folder existed
                model = ["--set", "model.path=", "--set", f"model.preset={base}"] if base else []
                plan = json.loads(self.sluice("plan", file, *CARD, *model, "--json").stdout)
                self.assertTrue(plan["fits"])
                for tier in plan["tiers"].values():
                    self.assertLessEqual(tier["bytes"], tier["budget_bytes"])
                self.assertGreater(plan["prediction"]["tokens_per_s"], 0)
        text = self.sluice("plan", ROOT / "configs/gpt2_small.json", *CARD).stdout
        for what in ("optimizer state", "per step", "limited by", "ZeRO-3", "budget"):
            self.assertIn(what, text)
        self.assertFalse((self.path / "nvme").exists())  # nothing was measured there

    def test_plans_a_model_by_its_name_for_a_machine_that_is_elsewhere(self):
        speeds = Path(os.environ["XDG_CACHE_HOME"]) / "sluice/speeds.json"
        known = speeds.exists() and speeds.read_bytes()
        shown = self.sluice("plan", "qwen3-8b", "--gpu", "rtx4090", "--ram", 64, "--data-tokens",
                            10_000_000)
        for what in ("8.19B parameters", "GeForce RTX 4090", "data sheet's rate",
                     "large products", "copies 50 GB/s",
                     "900 GiB", "the run: 306 steps", "hours",
                     "write endurance"):
            self.assertIn(what, shown.stdout)
        self.assertNotIn("taken from this machine", shown.stdout)
        self.assertEqual(list(self.path.iterdir()), [])  # nothing was measured or created
        self.assertEqual(speeds.exists() and speeds.read_bytes(), known)
        more = ["--nvme-gib", 1800, "--drive-read-gb-per-s", 7, "--drive-write-gb-per-s", 5,
                "--ram-gb-per-s", 60, "--data-tokens", 10_000_000, "--json"]
        plan = json.loads(self.sluice("plan", "Qwen/Qwen3-8B-Base", "--gpu", "RTX 4090", "--ram", 64,
                                      *more).stdout)
        self.assertTrue(plan["fits"])
        self.assertNotIn("assumed", plan["machine"])
        self.assertEqual(plan["tiers"]["cpu"]["budget_bytes"], 56 << 30)
        step, run = plan["prediction"], plan["run"]
        self.assertEqual(run["steps"], 306)
        self.assertAlmostEqual(run["hours"], 306 * step["step_s"] / 3600)
        self.assertAlmostEqual(run["nvme_write_tb"], 306e-12 * step["nvme_write_bytes"])
        self.assertEqual(run["drive_rated_tb"], 1200)
        self.assertAlmostEqual(run["share_of_drive_life"], run["nvme_write_tb"] / 1200)
        given = self.sluice("plan", "qwen3-8b", "--gpu", "rtx4090", "--ram", 64, *more[:-1],
                            "--drive-tbw", 300).stdout
        self.assertIn("300 TB", given)
        shares = {it["what"]: it for it in plan["machine"]["shares_of_data_sheet"]}
        self.assertEqual(shares["large products"]["share"], 0.92)
        self.assertIn("LLMQ", shares["large products"]["from"])

    def test_a_plan_needs_the_shape_of_a_model_and_not_its_folder(self):
        file = ROOT / "configs/qwen3_8b_24gb.json"
        shown = self.sluice("plan", file, "--gpu", "h100", "--ram", 256)
        self.assertRegex(shown.stderr, r"models/Qwen3-8B.*model\.preset qwen3-8b")
        self.assertIn("8.19B parameters", shown.stdout)
        # For another model there are no measurements; its config.json is enough.
        other = ["plan", file, "--gpu", "h100", "--set", "model.path=mine"]
        self.assertIn("hf download OWNER/mine --local-dir mine", self.refused(*other))
        (self.path / "mine").mkdir()
        self.write("mine/config.json", {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
            "intermediate_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 4,
            "vocab_size": 1000, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
            "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": False})
        self.sluice(*other)
        self.sluice("plan", "mine", "--gpu", "l4", "--ram", 32)

    def test_a_described_gpu_needs_no_drive_here(self):
        card = ["--gpu-gib", 24, "--tflops", 165, "--ram", 64]
        for name in (ROOT / "configs/qwen3_8b_24gb.json", "qwen3-0.6b"):
            shown = self.sluice("plan", name, *card)
            self.assertRegex(shown.stdout, r"6 GB/s \(--drive-read-gb-per-s\);.*3 GB/s")
        self.assertRegex(shown.stderr, r"model\.preset qwen3-0\.6b, 16.*2048")
        self.assertEqual(list(self.path.iterdir()), [])
        # The budget is that of the described machine.
        large = ["--gpu", "h100", "--set", "budget.cpu_gib=9000", "--set", "budget.nvme_gib=9000"]
        shown = self.sluice("plan", "qwen3-0.6b", *large)
        self.assertNotIn("asks for", shown.stderr)
        self.assertNotIn("(--ram)", shown.stdout)
        self.assertNotIn("(--nvme-gib)", shown.stdout)

    def test_a_mistyped_run_file_is_no_model(self):
        (self.path / "configs").mkdir()
        for name in ("gpt2_xl_24gb", "configs/gpt2_xl_24gb", "runs/qwen3-8b-lora.jsonc",
                     "qwen3-8b.yaml", "runs/mine/qwen3-8b"):
            with self.subTest(name=name):
                self.assertIn(name, self.refused("plan", name, "--gpu", "rtx4090"))

    def test_counts_steps_by_tokens_only_where_epochs_are_the_length(self):
        plan = ["plan", ROOT / "configs/demo.json", *CARD, "--data-tokens", 1_000_000, "--json",
                "--set"]
        self.assertIn("run.steps is 9", self.refused(*plan, "run.steps=9"))
        made = json.loads(self.sluice(*plan, "run.epochs=1").stdout)
        self.assertEqual(made["run"]["steps"], -(-1_000_000 // made["tokens_per_step"]))

    def test_plans_fp32_by_a_rate_of_fp32(self):
        plan = ["plan", ROOT / "configs/demo.json", "--gpu", "rtx4090", "--set",
                "bf16.enabled=false"]
        self.assertIn("give its fp32 speed", self.refused(*plan))
        self.sluice(*plan, "--tflops", 82)

    def test_knows_gpus_by_name_and_lists_them(self):
        table = self.sluice("plan", "--list-gpus").stdout
        for name in ("rtx3090", "rtx4090", "rtx5090", "a6000", "l4", "l40s", "a100-40", "a100-80",
                     "h100-pcie", "h100", "h200", "b200", "rtxpro6000"):
            self.assertRegex(table, rf"(?m)^{name} ")
        said = self.refused("plan", "qwen3-8b", "--gpu", "voodoo2")
        self.assertIn("rtx4090", said)
        self.assertIn("--tflops", said)
        self.assertIn("qwen9-8b", self.refused("plan", "qwen9-8b", "--gpu", "rtx4090"))

    def test_says_what_it_takes_from_this_machine(self):
        shown = self.sluice("plan", ROOT / "configs/gpt2_small.json", "--gpu-gib", 24,
                            "--tflops", 165, "--cpu-gib", 56).stdout
        self.assertRegex(shown, r"RAM.*\(--ram-gb-per-s\)\n")
        self.assertRegex(shown, r"assumed, because not given: GPU memory 768 GB/s; bus 32")

    def test_ends_with_2_and_a_setting_where_a_configuration_does_not_fit(self):
        little = ["--gpu-gib", 1, "--cpu-gib", 4, "--ram-gb-per-s", 80,
                  "--drive-read-gb-per-s", 6]
        for file in ("gpt2_xl_24gb.json", "gpt_13b_24gb.json"):
            with self.subTest(file=file):
                shown = self.sluice("plan", ROOT / "configs" / file, *little, code=2)
                self.assertRegex(shown.stdout, "not fit: .* missing")
                plan = json.loads(self.sluice("plan", ROOT / "configs" / file, *little, "--json",
                                              code=2).stdout)
                self.assertFalse(plan["fits"])
                self.assertIn(plan["reason"], shown.stdout)
        less = ["--gpu-gib", 1.5, *CARD[2:]]
        shown = self.sluice("plan", ROOT / "configs/gpt2_xl_24gb.json", *less, code=2)
        self.assertRegex(shown.stdout, r"It would fit with .*a GPU with [0-9.]+ GiB")
        self.assertNotIn("budget.gpu_gib", shown.stdout)

    def test_simulates_steps_with_the_table_and_the_trace_of_a_run(self):
        shown = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--simulate", 2, "--trace",
                            "trace.json", "--set", "model.layers=4",
                            "--set", "zero_optimization.offload_optimizer.device=nvme")
        for what in ("simulated", "update, exposed", "NVMe read", "per step"):
            self.assertIn(what, shown.stdout)
        summary = subprocess.run([sys.executable, "-B", ROOT / "tools/trace_summary",
                                  self.path / "trace.json"], check=True, capture_output=True,
                                 text=True, timeout=60).stdout
        self.assertRegex(summary, r"NVMe read +[1-9]")
        self.assertRegex(summary, r"compute +[1-9]")
        self.refused("plan", ROOT / "configs/demo.json", "--trace", "trace.json")
        simulated = ["plan", ROOT / "configs/demo.json", *CARD, "--simulate", 1, "--trace"]
        self.assertIn("--force", self.refused(*simulated, "trace.json"))
        self.assertIn("no folder absent", self.refused(*simulated, "absent/trace.json"))
        for number in ("nan", "-1", "inf"):
            self.refused("plan", ROOT / "configs/demo.json", "--gpu-gib", number)

    def test_plans_for_the_gpus_of_several_hosts_and_how_it_grows_with_them(self):
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                                  "offload_optimizer": {"device": "auto"}},
            "model": {"layers": 8, "hidden": 2048, "heads": 16, "context": 1024, "vocab": 50257},
            "data": {"train": ["text.bin"], "dtype": "uint16"}})
        card = ["plan", "run.json", "--gpu-gib", 24, "--tflops", 150, *CARD[2:]]
        hosts = [*card, "--gpus", 4, "--hosts", 8, "--network-gb-per-s", 100]
        fast = json.loads(self.sluice(*hosts, "--link-gb-per-s", 200, "--json").stdout)
        self.assertEqual((fast["ranks"], fast["ranks_per_host"]), (32, 4))
        self.assertEqual(fast["tokens_per_step"], 32 * 4 * 1024)
        self.assertEqual([(row["ranks"], row["hosts"]) for row in fast["growth"]],
                         [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (32, 8)])
        self.assertEqual(fast["growth"][0]["share_of_linear"], 1)
        self.assertEqual(fast["growth"][-1]["step_s"], fast["prediction"]["step_s"])
        for one, more in zip(fast["growth"], fast["growth"][1:]):
            self.assertGreater(more["tokens_per_s"], one["tokens_per_s"])
        self.assertEqual(fast["machine"]["link"]["gather_bytes_per_s"], 200e9)
        slow = json.loads(self.sluice(*hosts, "--link-gb-per-s", 2, "--json").stdout)
        self.assertEqual(slow["prediction"]["bottleneck"], "link between ranks")
        self.assertGreater(slow["prediction"]["link_exposed_s"],
                           fast["prediction"]["link_exposed_s"])
        self.assertLess(slow["prediction"]["tokens_per_s"], fast["prediction"]["tokens_per_s"])
        late = self.sluice(*hosts, "--link-gb-per-s", 200, "--link-latency-us", 50000, "--json")
        self.assertGreater(json.loads(late.stdout)["prediction"]["step_s"],
                           2 * fast["prediction"]["step_s"])
        shown = self.sluice(*hosts, "--link-gb-per-s", 200, "--simulate", 1, "--trace",
                            "ranks.json").stdout
        for what in ("32 ranks, 4 on each of 8", "scaling efficiency",
                     "not overlapped", "each of 32 ranks", "described or assumed"):
            self.assertIn(what, shown)
        trace = (self.path / "ranks.json").read_text(encoding="utf-8")
        self.assertIn('"link"', trace)
        thousands = self.sluice(*card, "--gpus", 8, "--hosts", 1024, "--json").stdout
        self.assertEqual(json.loads(thousands)["growth"][-1]["ranks"], 8192)

    def test_refuses_ranks_that_cannot_be(self):
        demo = ["plan", ROOT / "configs/demo.json"]
        for words, told in (
                (["--hosts", 2], "--gpus"), (["--gpus", 0], "--gpus"),
                ([*CARD, "--link-gb-per-s", 100], "set --gpus"),
                ([*CARD, "--gpus", 2, "--network-gb-per-s", 10], "set --hosts"),
                ([*CARD, "--gpus", 2, "--link-gb-per-s", 0], "--link-gb-per-s"),
                ([*CARD, "--gpus", 64, "--hosts", 2048], "is the maximum"),
                (["--gpus", 2, "--set", "run.device=cpu"], "describe a GPU")):
            with self.subTest(words=words):
                self.assertIn(told, self.refused(*demo, *words))

    def test_warns_where_the_data_could_not_be_trained_on(self):
        for name, tokenizer in (("bytes", {"kind": "bytes"}),
                                ("other", {"kind": "bpe", "vocabulary_sha256": "ab" * 32})):
            self.write(f"{name}.bin.json", {"format": "sluice-tokens", "version": 1, "tokens": 9,
                                            "dtype": "uint16", "vocab_size": 257,
                                            "tokenizer": tokenizer})
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD).stderr
        self.assertRegex(told, r"data\.train: .*out/demo/corpus/train\.bin")
        told = self.sluice("plan", ROOT / "configs/demo.json", *CARD, "--set",
                           'data.train=["bytes.bin"]', "--set",
                           'data.validation=["other.bin"]').stderr
        self.assertRegex(told, r"data\.train and data\.validation.*tokenizers")

    def test_a_run_says_its_plan_before_the_first_step(self):
        (self.path / "text.bin").write_bytes(struct.pack("<8000H", *(i % 61 for i in range(8000))))
        self.write("run.json", {
            "train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "auto"},
                                  "offload_optimizer": {"device": "auto"}},
            "model": {"layers": 2, "hidden": 32, "heads": 2, "context": 16, "vocab": 64},
            "data": {"train": ["text.bin"], "dtype": "uint16", "validation_fraction": 0.1},
            "run": {"steps": 3, "cpu_threads": 1, "device": "cpu", "eval_batches": 2}})
        shown = self.sluice("train", "run.json", "--out", "a")
        lines = shown.stderr.splitlines()
        plan = next(i for i, line in enumerate(lines) if line.startswith("plan: "))
        step = next(i for i, line in enumerate(lines) if line.startswith("step "))
        self.assertLess(plan, step)
        self.assertRegex(lines[plan], "plan: [0-9.]+ ms .* limited by ")
        self.assertEqual(len((self.path / "a/metrics.jsonl").read_text().splitlines()), 3)


if __name__ == "__main__":
    unittest.main()
