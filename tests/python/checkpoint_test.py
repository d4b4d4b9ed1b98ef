"""Checkpoints of the package sluice: a run that stops or is killed continues with the bits of one
that was not interrupted."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import torch
from torch import nn

import sluice
import small_modules
from small_modules import PLACES, Tower, batches, initialize, masters, tower, train

STEPS = 8


class Noisy(Tower):
    """Has all state besides weights that affects a step: dropout, and a buffer that forward
    changes."""

    def __init__(self):
        super().__init__(dropout=0.2)
        self.register_buffer("uses", torch.zeros((), dtype=torch.int64))
        self.running = nn.BatchNorm1d(16)

    def hidden(self, tokens):
        self.uses += 1
        return self.running(super().hidden(tokens).transpose(1, 2)).transpose(1, 2)


def noisy():
    torch.manual_seed(4)
    return Noisy()


def kept_training(directory, place, drive):
    """Trains from its newest checkpoint and saves every step, as a script would. Runs in a child
    process."""
    torch.set_num_threads(1)
    with initialize(noisy(), accumulation=2, place=place, drive=drive) as engine:
        if Path(directory, "checkpoints").exists():
            _, state = engine.load_checkpoint(directory)
            first = state["next"]
        else:
            first = 0
        torch.manual_seed(7) if first == 0 else None
        for step in range(first, STEPS):
            train(engine, batches(2, seed=step))
            engine.save_checkpoint(directory, {"next": step + 1})
            print(step + 1, flush=True)
        print(masters(engine), int(engine.module.uses), flush=True)


class Resuming(unittest.TestCase):
    def straight(self):
        torch.manual_seed(7)
        with initialize(noisy(), accumulation=2, gradient_clipping=1.0) as engine:
            losses = []
            for step in range(STEPS):
                losses += train(engine, batches(2, seed=step))
            return losses, masters(engine), engine.state_dict()

    def test_has_the_bits_of_a_run_that_never_stopped_wherever_anything_lies(self):
        losses, weights, state = self.straight()
        with tempfile.TemporaryDirectory() as folder:
            drive = Path(folder) / "drive"
            drive.mkdir()
            got = []
            torch.manual_seed(7)
            for part, place in enumerate((*PLACES[-3:], "cpu")):
                with initialize(
                    noisy(), accumulation=2, place=place, drive=drive, gradient_clipping=1.0
                ) as engine:
                    if part > 0:
                        torch.manual_seed(1)  # the state in another process
                        path, client = engine.load_checkpoint(Path(folder) / "run")
                        self.assertEqual(path, saved)
                        self.assertEqual(client, {"part": part - 1, "π": [None]})
                        self.assertEqual(engine.global_step, 2 * part)
                    for step in range(2 * part, 2 * part + 2):
                        got += train(engine, batches(2, seed=step))
                    saved = engine.save_checkpoint(
                        Path(folder) / "run", {"part": part, "π": [None]}
                    )
                    if part == 3:
                        self.assertEqual(masters(engine), weights)
                        for name, value in engine.state_dict().items():
                            self.assertTrue(torch.equal(value, state[name]), name)
            self.assertEqual(got, losses)
            self.assertEqual(
                sorted(os.listdir(Path(folder) / "run" / "checkpoints")),
                [f"step-{step:09}" for step in (6, 8)],
            )  # run.keep_last is 2 by default

    def test_in_16_bits_has_the_same_masters(self):
        precision = {"bf16": {"enabled": True}}
        with tempfile.TemporaryDirectory() as folder:
            with initialize(tower(), **precision) as engine:
                train(engine, batches(3))
                engine.save_checkpoint(folder)
                train(engine, batches(3, seed=2))
                expected = masters(engine)
            with initialize(tower(seed=8), **precision) as engine:
                engine.load_checkpoint(folder)
                train(engine, batches(3, seed=2))
                self.assertEqual(masters(engine), expected)

    def test_works_in_the_engine_that_saved(self):
        with tempfile.TemporaryDirectory() as folder, initialize(tower(dropout=0.1)) as engine:
            train(engine, batches(2))
            first = engine.save_checkpoint(folder)
            after = train(engine, batches(2)), masters(engine)
            engine.load_checkpoint(first)
            self.assertEqual((train(engine, batches(2)), masters(engine)), after)

    def test_after_kill_9_has_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            drive = Path(folder) / "drive"
            drive.mkdir()

            def run(directory, place, kill_at=None):
                code = (
                    "import sys; sys.path.insert(0, sys.argv[1]); import checkpoint_test; "
                    "checkpoint_test.kept_training(*sys.argv[2:])"
                )
                process = subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        code,
                        str(Path(__file__).parent),
                        str(directory),
                        place,
                        str(drive),
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                )
                last = ""
                for line in process.stdout:
                    last = line
                    if kill_at is not None and line.strip() == str(kill_at):
                        time.sleep(0.02 * kill_at)  # somewhere in the next step, or in its save
                        process.send_signal(signal.SIGKILL)
                process.stdout.close()
                return process.wait(), last.split()

            expected = run(Path(folder) / "undisturbed", "cpu")
            self.assertEqual((expected[0], expected[1][1]), (0, str(2 * STEPS)))
            self.assertEqual(run(Path(folder) / "killed", "nvme", kill_at=2)[0], -signal.SIGKILL)
            self.assertEqual(run(Path(folder) / "killed", "cpu", kill_at=5)[0], -signal.SIGKILL)
            self.assertEqual(run(Path(folder) / "killed", "mixed"), expected)


class Refusing(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        with initialize(tower()) as engine:
            train(engine, batches(2))
            self.path = engine.save_checkpoint(self.folder.name)

    def refused(self, sentence, module, error=sluice.RefusedError, path=None, **options):
        with initialize(module, **options) as engine:
            train(engine, batches(1))
            before = masters(engine), torch.get_rng_state().tolist()
            with self.assertRaisesRegex(error, sentence):
                engine.load_checkpoint(path or self.folder.name)
            self.assertEqual((masters(engine), torch.get_rng_state().tolist()), before)
            self.assertEqual(engine.global_step, 1)
            self.assertEqual(len(train(engine, batches(2))), 2)

    def test_another_module(self):
        self.refused(r"another module: .*blocks\.4", tower(blocks=5))
        self.refused(r"has .*blocks\.3\..* does not train", tower(blocks=3))
        other = tower()
        other.blocks[1].up = nn.Linear(16, 32)
        other.blocks[1].down = nn.Linear(32, 16)
        self.refused(r"blocks\.1\.up\.weight .*\[64, 16\] .*\[32, 16\]", other)
        frozen = tower()
        frozen.blocks[0].requires_grad_(False)
        self.refused(r"has .*blocks\.0\..* does not train", frozen)

    def test_another_configuration(self):
        self.refused("the precision is .*bf16.*, and was .*fp32", tower(), bf16={"enabled": True})
        self.refused("seed is 4, .* 3", tower(), run={"seed": 4})

    def test_other_frozen_parameters(self):
        module = tower(tied=False)
        module.embedding.requires_grad_(False)
        with initialize(module) as engine, tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder)
            other = tower(tied=False, seed=1)
            other.embedding.requires_grad_(False)
            self.refused("frozen parameters", other, path=folder)

    def test_a_frozen_parameter_that_differs_in_its_middle(self):
        def wide(change=0.0):
            torch.manual_seed(5)
            module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))
            module[0].requires_grad_(False)
            with torch.no_grad():
                module[0].weight[32, 32] += change
            return module

        def made(change=0.0):
            return sluice.initialize(wide(change), small_modules.run_config())

        with tempfile.TemporaryDirectory() as folder, made() as engine:
            engine.save_checkpoint(folder)
            with made() as same:
                same.load_checkpoint(folder)
            with made(0.25) as other:
                with self.assertRaisesRegex(sluice.RefusedError, "frozen parameters"):
                    other.load_checkpoint(folder)

    def test_what_is_not_there_or_damaged(self):
        nowhere = Path(self.folder.name) / "nowhere"
        self.refused("no checkpoint in", tower(), error=sluice.Error, path=nowhere)
        manifest = Path(self.path) / "checkpoint.json"
        text = manifest.read_text()
        manifest.write_text(text.replace('"global_step": 2', '"global_step": 3'))
        self.refused("checkpoint.json", tower(), error=sluice.Error)
        manifest.write_text(text)
        weights = next(Path(self.path).glob("master-*"))
        data = bytearray(weights.read_bytes())
        data[20] ^= 1  # within its header
        weights.write_bytes(data)
        self.refused("master-00001", tower(), error=sluice.Error)

    def test_damaged_values_end_the_engine_with_their_file(self):
        weights = next(Path(self.path).glob("exp_avg_sq-*"))
        data = bytearray(weights.read_bytes())
        data[-5] ^= 1
        weights.write_bytes(data)
        with initialize(tower()) as engine:
            for _ in range(2):
                with self.assertRaisesRegex(sluice.Error, "exp_avg_sq-00001"):
                    engine.load_checkpoint(self.path)

    def test_a_save_within_a_step_or_of_another_runs_directory(self):
        with initialize(tower(), accumulation=2) as engine:
            train(engine, batches(1))
            with self.assertRaisesRegex(sluice.RefusedError, "between steps"):
                engine.save_checkpoint(self.folder.name)
            train(engine, batches(1))
            engine.save_checkpoint(self.folder.name)
            with initialize(tower()) as other:
                train(other, batches(1))
                with self.assertRaisesRegex(sluice.Error, "another run"):
                    other.save_checkpoint(self.folder.name)
                with self.assertRaisesRegex(sluice.RefusedError, "client_state .*JSON"):
                    other.save_checkpoint(self.folder.name + "-other", {"f": print})

    def test_a_save_between_micro_batches(self):
        """On request, it saves the last whole step, and the current step continues."""
        data = batches(8)
        for place in PLACES[:2]:
            drive = Path(self.folder.name) / place
            drive.mkdir()
            with initialize(tower(), accumulation=3, place=place, drive=drive) as engine:
                expected = train(engine, data[:6])
                weights = masters(engine)
            with initialize(tower(), accumulation=3, place=place, drive=drive) as engine:
                losses = train(engine, data[:3])
                middle = masters(engine)
                losses += train(engine, data[3:5])
                path = engine.save_checkpoint(drive / "run", within_step=True)
                engine.backward(engine(data[5]))  # the last micro-batch of its step
                with self.assertRaisesRegex(sluice.RefusedError, "between steps"):
                    engine.save_checkpoint(drive / "run", within_step=True)
                losses.append(engine.step().loss)
                self.assertEqual((losses, masters(engine)), (expected, weights))
                engine.load_checkpoint(path)
                self.assertEqual(masters(engine), middle)

    def test_a_client_state_that_no_manifest_has_room_for(self):
        quotes = '"' * (65 << 20)  # each takes four characters in the manifest
        with initialize(tower()) as engine:
            with self.assertRaisesRegex(sluice.RefusedError, "client_state .* 260.*M"):
                engine.save_checkpoint(self.folder.name + "/new", {"notes": quotes})
            self.assertFalse(os.path.exists(self.folder.name + "/new"))
            engine.save_checkpoint(self.folder.name + "/new", {"notes": quotes[: 1 << 20]})
            _, state = engine.load_checkpoint(self.folder.name + "/new")
            self.assertEqual(state, {"notes": quotes[: 1 << 20]})

    def test_a_generator_of_another_size_changes_nothing(self):
        full = torch.get_rng_state()
        for number, state in enumerate((full[:-8], full[:0], full.float())):
            folder = Path(self.folder.name) / str(number)
            with initialize(tower()) as engine:
                train(engine, batches(1, seed=9))
                with mock.patch("torch.get_rng_state", return_value=state):
                    engine.save_checkpoint(folder)
            self.refused("cpu random generator", tower(), path=folder)

    def test_keeps_no_more_than_asked_for(self):
        with initialize(tower(), run={"keep_last": 2}) as engine:
            engine.load_checkpoint(self.folder.name)
            for tokens in batches(3):
                train(engine, [tokens])
                engine.save_checkpoint(self.folder.name)
        self.assertEqual(
            sorted(os.listdir(Path(self.folder.name) / "checkpoints")),
            ["step-000000004", "step-000000005"],
        )

    def test_the_manifest_says_whose_it_is(self):
        content = json.loads((Path(self.path) / "checkpoint.json").read_text())["content"]
        self.assertEqual((content["version"], content["run"]["family"]), (9, "module"))
        self.assertEqual(content["features"], ["client"])
        self.assertEqual(content["parameters"], len(list(tower().parameters())))


if __name__ == "__main__":
    unittest.main()
