"""How much memory a module takes that is made within sluice.init, measured from outside: it is
three times as large as the budget of its run."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

import sluice
from small_modules import batches, run_config

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import reference_packages

reference_packages.use()
try:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    MISSING = None
except ImportError as error:
    MISSING = f"{error}: tools/setup --for=test fetches it"

MIB = 2**20


def llama(folder=None):
    torch.manual_seed(11)
    if folder is None:
        config = transformers.LlamaConfig(
            vocab_size=50, hidden_size=256, intermediate_size=704, num_hidden_layers=80,
            num_attention_heads=8, num_key_value_heads=4,
        )  # fmt: skip
        module = transformers.AutoModelForCausalLM.from_config(config)
    else:
        module = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return module


def peak_bytes():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(it.split()[1]) << 10 for it in lines if it.startswith("VmHWM"))


def llama_config(folder):
    config = run_config(place="nvme", drive=Path(folder) / "drive", bf16={"enabled": True})
    return {**config, "budget": {"cpu_gib": PROGRAM_GIB + (BUDGET_BYTES + STAGING_BYTES) / 2**30}}


def steps(engine, count, seed):
    losses = []
    for tokens in batches(count, seed=seed):
        engine.backward(engine(tokens, labels=tokens).loss)
        losses.append(engine.step().loss)
    return losses


def train_llama(folder, how):
    """In a child process: reports the losses, and the memory beyond that of the program."""
    folder = Path(folder)
    config = llama_config(folder)
    warm = transformers.LlamaConfig(vocab_size=50, hidden_size=64, num_hidden_layers=1)
    warm = transformers.AutoModelForCausalLM.from_config(warm).to(torch.bfloat16)
    warm(batches(1)[0], labels=batches(1)[0]).loss.backward()
    base = peak_bytes()
    report = {}

    def note(name):
        report[name] = peak_bytes() - base

    with sluice.init(config):
        module = llama(folder / "model" if how == "read" else None)
    note("made")
    with sluice.initialize(module, config) as engine:
        note("taken over")
        report["losses"] = steps(engine, 5, 1)
        note("trained")
        if how == "made":
            engine.save_checkpoint(folder / "run")
            note("saved")
            report["after"] = steps(engine, 1, 9)
            engine.load_checkpoint(folder / "run")
            report["again"] = steps(engine, 1, 9)
            note("loaded")
            engine.load_checkpoint(folder / "run")
        engine.save_weights(folder / f"{how}.safetensors")
        note("exported")
    print(json.dumps(report), flush=True)


PROGRAM_GIB = 768 / 1024  # in the plan
# The run's budget, without the program and the memory for a save; a larger plan is refused.
BUDGET_BYTES = 72 * MIB
# Not in any plan: memory of autograd and of libraries.
LEEWAY_BYTES = 24 * MIB
# For a checkpoint that is written or read, for any size of the module.
STAGING_BYTES = 48 * MIB


class Memory(unittest.TestCase):
    def run_apart(self, folder, how):
        code = "import sys; sys.path.insert(0, sys.argv[1]); import init_memory_test; "
        code += "init_memory_test.train_llama(*sys.argv[2:])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent), folder, how],
            stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    @unittest.skipIf(MISSING, MISSING)
    def test_three_times_the_budget_is_made_trained_saved_and_loaded_within_it(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "drive").mkdir()
            module = llama()
            self.assertGreater(sum(it.nbytes for it in module.parameters()), 3 * BUDGET_BYTES)
            module.save_pretrained(Path(folder) / "model", max_shard_size="60MB")
            with sluice.initialize(module, llama_config(folder)) as engine:
                losses = steps(engine, 5, 1)
                engine.save_weights(Path(folder) / "plain.safetensors")
            weights = (Path(folder) / "plain.safetensors").read_bytes()
            for how in ("made", "read"):
                report = self.run_apart(folder, how)
                self.assertEqual(report["losses"], losses)
                self.assertEqual(report.get("after"), report.get("again"))
                self.assertEqual((Path(folder) / f"{how}.safetensors").read_bytes(), weights)
                for name in ("made", "taken over", "trained"):
                    self.assertLess(report[name], BUDGET_BYTES + LEEWAY_BYTES, (how, name))
                most = BUDGET_BYTES + LEEWAY_BYTES + STAGING_BYTES
                self.assertLess(report["exported"], most, how)


if __name__ == "__main__":
    unittest.main()
