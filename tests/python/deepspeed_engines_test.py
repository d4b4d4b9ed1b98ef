"""Engines made through DeepSpeed's names (sluice.deepspeed): checkpoints and gathered
parameters."""

import argparse
import os
import shutil
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch

import sluice
import sluice.deepspeed as deepspeed
import small_modules
from deepspeed_scripts import close, ds_config, gathered, initialize, train, train_by_torch
from sluice.deepspeed import weights
from small_modules import batches, masters, run_config, torch_adamw, tower, twin


class Checkpoints(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def engine(self, seed=0, **more):
        engine, _, _, _ = initialize(tower(seed=seed, dropout=0.1), ds_config(**more))
        self.addCleanup(engine.destroy)
        return engine

    def test_go_on_with_the_bits_of_a_run_that_never_stopped(self):
        scheduler = {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 3, "warmup_max_lr": 0.01, "total_num_steps": 9},
        }
        torch.manual_seed(3)
        engine = self.engine(accumulation=2, scheduler=scheduler)
        train(engine, batches(6))
        self.assertTrue(engine.save_checkpoint(self.folder, client_state={"epoch": 3, "x": [None]}))
        expected = train(engine, batches(6, seed=5)), masters(engine.engine), engine.get_lr()
        torch.manual_seed(9)
        other = self.engine(seed=7, accumulation=2, scheduler=scheduler)
        path, state = other.load_checkpoint(self.folder)
        self.assertTrue(path.startswith(str(self.folder / "global_step3")))
        self.assertEqual(state, {"epoch": 3, "x": [None]})
        self.assertEqual((other.global_steps, other.micro_steps), (3, 6))
        got = train(other, batches(6, seed=5)), masters(other.engine), other.get_lr()
        self.assertEqual(got, expected)

    def test_latest_is_what_was_saved_last_and_a_tag_is_replaced(self):
        engine = self.engine()
        hashes = {}
        for tag in ("first", "second", "aside"):
            train(engine, batches(1))
            engine.save_checkpoint(self.folder, tag, save_latest=tag != "aside")
            hashes[tag] = masters(engine.engine)
        self.assertEqual((self.folder / "latest").read_text(), "second")
        self.assertEqual(sorted(os.listdir(self.folder)), ["aside", "first", "latest", "second"])
        for tag, expected in ((None, "second"), ("aside", "aside"), ("first", "first")):
            self.assertEqual(engine.load_checkpoint(self.folder, tag)[1], {})
            self.assertEqual(masters(engine.engine), hashes[expected])
        engine.save_checkpoint(self.folder, "aside")  # an earlier step than the one it replaces
        other = self.engine(seed=1)
        other.load_checkpoint(self.folder)
        self.assertEqual((masters(other.engine), other.global_steps), (hashes["first"], 1))
        self.assertEqual(len(list((self.folder / "aside/checkpoints").iterdir())), 1)
        other.load_checkpoint(self.folder, load_module_only=True)
        self.assertEqual((masters(other.engine), other.global_steps), (hashes["first"], 0))
        self.assertEqual(len(train(other, batches(2))), 2)

    def test_a_tag_that_is_saved_anew_loses_nothing_but_what_it_replaces(self):
        engine = self.engine()
        train(engine, batches(1))
        engine.save_checkpoint(self.folder, "tag")
        parts = self.folder / "tag/checkpoints"
        first = parts / "step-000000001"
        newer, damaged = parts / "step-000000007", parts / "step-000000008"
        for other in (newer, damaged, parts / "step-000000003"):
            shutil.copytree(first, other)
        text = (newer / "checkpoint.json").read_text(encoding="utf-8")
        (newer / "checkpoint.json").write_text(text.replace('"version"', '"later"'))
        (damaged / "checkpoint.json").write_bytes(b"cut")
        (parts / "set-aside-at-step-000000001/checkpoints/step-000000002").mkdir(parents=True)
        (parts / "mine").mkdir()
        (parts / "mine/notes.txt").write_text("mine")
        kept = set(os.listdir(parts)) - {first.name}
        train(engine, batches(1))
        with self.assertLogs("sluice", "INFO") as said:
            engine.save_checkpoint(self.folder, "tag")
        self.assertRegex("\n".join(said.output), "former checkpoint .*step-000000001 ")
        self.assertEqual(set(os.listdir(parts)), kept | {"step-000000002"})
        expected = masters(engine.engine)
        other = self.engine(seed=1)
        self.assertTrue(other.load_checkpoint(self.folder, "tag")[0].endswith("step-000000002"))
        self.assertEqual(masters(other.engine), expected)
        # The tag does not own the target of a link.
        theirs = self.folder / "theirs"
        (self.folder / "tag").rename(theirs)
        (self.folder / "tag").symlink_to(theirs)
        before = sorted(os.listdir(theirs / "checkpoints"))
        train(engine, batches(1))
        with self.assertRaisesRegex(sluice.RefusedError, "is a symbolic link"):
            engine.save_checkpoint(self.folder, "tag")
        (self.folder / "tag").unlink()
        (self.folder / "tag").mkdir()
        (self.folder / "tag/checkpoints").symlink_to(theirs / "checkpoints")
        with self.assertRaisesRegex(sluice.RefusedError, "checkpoints is a link"):
            other.save_checkpoint(self.folder, "tag")
        self.assertEqual(sorted(os.listdir(theirs / "checkpoints")), before)
        (theirs / "notes.txt").write_text("mine")
        (self.folder / "latest").unlink(missing_ok=True)
        (self.folder / "latest").symlink_to(theirs / "notes.txt")
        engine.save_checkpoint(self.folder, "another")
        engine.save_16bit_model(theirs, "w.bin")
        self.assertEqual((theirs / "notes.txt").read_text(), "mine")
        self.assertEqual((self.folder / "latest").read_text(), "another")

    def test_what_is_not_whole(self):
        engine = self.engine()
        train(engine, batches(1))
        with self.assertLogs("sluice", "WARNING"):
            self.assertEqual(engine.load_checkpoint(self.folder), (None, None))
        engine.save_checkpoint(self.folder, "good")
        before = masters(engine.engine)
        self.refused("wrong .* tags: good", engine, "wrong", sluice.Error)
        (self.folder / "latest").write_text("gone\n")
        self.refused("gone, .*latest ", engine, None, sluice.Error)
        half = self.folder / "half/checkpoints/step-000000003"
        half.mkdir(parents=True)
        (half / "master-00001-of-00001.safetensors").write_bytes(b"\0" * 100)
        self.refused("half .*complete checkpoint", engine, "half", sluice.Error)
        theirs = self.folder / "theirs"
        theirs.mkdir()
        (theirs / "mp_rank_00_model_states.pt").write_bytes(b"")
        self.refused("written by DeepSpeed", engine, "theirs")
        for tag in ("../good", "", "latest", "a/b", ".."):
            self.refused("name of a folder", engine, tag)
            with self.assertRaisesRegex(sluice.RefusedError, "name of a folder"):
                engine.save_checkpoint(self.folder, tag)
        self.assertEqual(masters(engine.engine), before)
        self.assertEqual(len(train(engine, batches(1))), 1)

    def refused(self, sentence, engine, tag, error=sluice.RefusedError):
        with self.assertRaisesRegex(error, sentence):
            engine.load_checkpoint(self.folder, tag)

    def test_client_states_that_json_cannot_hold(self):
        engine = self.engine()
        loop = {}
        loop["self"] = loop
        for state in (
            {"a": torch.ones(2)},
            {"a": (1, 2)},
            {1: 2},
            {"a": float("nan")},
            {"a": {1}},
            {"args": argparse.Namespace(a=1)},
            loop,
        ):
            with self.assertRaisesRegex(sluice.RefusedError, "client_state"):
                engine.save_checkpoint(self.folder, "bad", state)
        self.assertEqual(os.listdir(self.folder), [])

    def test_others_are_refused_by_name(self):
        engine = self.engine()
        for option in ({"load_optimizer_states": False}, {"custom_load_fn": print}):
            with self.assertRaisesRegex(sluice.RefusedError, next(iter(option))):
                engine.load_checkpoint(self.folder, **option)
        with self.assertRaisesRegex(sluice.RefusedError, "save_checkpoint"):
            engine.optimizer.state_dict()

    def test_16_bit_models(self):
        module = tower()
        module.blocks[0].requires_grad_(False)
        engine, _, _, _ = initialize(module, ds_config(bf16={"enabled": True}))
        self.addCleanup(engine.destroy)
        train(engine, batches(2))
        self.assertTrue(engine.bfloat16_enabled() and not engine.fp16_enabled())
        engine.save_16bit_model(self.folder / "all")
        engine.save_16bit_model(self.folder, "some.bin", exclude_frozen_parameters=True)
        state = torch.load(self.folder / "all/pytorch_model.bin", weights_only=True)
        self.assertEqual({it.dtype for it in state.values()}, {torch.bfloat16})
        for name, value in module.state_dict().items():
            self.assertTrue(torch.equal(state[name], value), name)
        some = torch.load(self.folder / "some.bin", weights_only=True)
        self.assertEqual(
            {name for name in state if name.startswith("blocks.0.")}, state.keys() - some.keys()
        )


class Gathering(unittest.TestCase):
    def test_reads_and_before_the_first_step_writes(self):
        for bits in ({}, {"bf16": {"enabled": True}}):
            module = tower()
            module.blocks[2].requires_grad_(False)
            expected = twin(module)
            engine, _, _, _ = initialize(module, ds_config(**bits))
            weight = module.blocks[1].up.weight
            with gathered(weight), torch.no_grad():
                self.assertTrue(torch.equal(weight, expected.blocks[1].up.weight.to(weight.dtype)))
            with gathered(module.blocks[1], modifier_rank=0), torch.no_grad():
                weight.fill_(0.5)
                expected.blocks[1].up.weight.fill_(0.5)
            with gathered([module.blocks[2].up.bias], modifier_rank=0):
                module.blocks[2].up.bias.data.fill_(0.25)
                expected.blocks[2].up.bias.data.fill_(0.25)
            reference, _, _, _ = initialize(expected, ds_config(**bits))
            self.assertEqual(train(engine, batches(3)), train(reference, batches(3)))
            self.assertEqual(masters(engine.engine), masters(reference.engine))
            engine.destroy()
            reference.destroy()

    def test_after_steps_writes_masters_and_leaves_moments(self):
        with tempfile.TemporaryDirectory() as folder:
            for place in ("cpu", "nvme", "mixed"):
                module = tower()
                reference = twin(module)
                plain = torch_adamw(reference)
                drive = Path(folder) / place
                drive.mkdir()
                with sluice.initialize(module, run_config(place=place, drive=drive)) as engine:
                    expected = train_by_torch(reference, plain, batches(3))
                    self.assertTrue(close(small_modules.train(engine, batches(3)), expected))
                    weight = module.blocks[1].up.weight
                    before = engine.state_dict()
                    with gathered([weight, module.norm.bias], modifier_rank=0), torch.no_grad():
                        weight[3] = 0.5
                        module.norm.bias.add_(1)
                    with torch.no_grad():
                        reference.blocks[1].up.weight[3] = 0.5
                        reference.norm.bias.add_(1)
                    after = engine.state_dict()
                    self.assertEqual(
                        {it for it in after if not torch.equal(after[it], before[it])},
                        {"blocks.1.up.weight", "norm.bias"},
                    )
                    self.assertTrue((after["blocks.1.up.weight"][3] == 0.5).all())
                    self.assertEqual(engine.global_step, 3)
                    engine.save_checkpoint(drive / "run")
                    changed = masters(engine)
                    # Without its moments, the step would be AdamW's first, at the whole rate.
                    expected = train_by_torch(reference, plain, batches(4, seed=5))
                    self.assertTrue(
                        close(small_modules.train(engine, batches(4, seed=5)), expected)
                    )
                    done = masters(engine)
                    engine.load_checkpoint(drive / "run")
                    self.assertEqual(masters(engine), changed)
                    small_modules.train(engine, batches(4, seed=5))
                    self.assertEqual(masters(engine), done)

    def test_in_16_bits_changes_the_masters_of_what_was_changed_alone(self):
        module = tower()
        engine, _, _, _ = initialize(module, ds_config(bf16={"enabled": True}))
        train(engine, batches(3))
        weight = module.blocks[1].up.weight
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / f"{name}.safetensors" for name in ("before", "after")]
            engine.engine.save_weights(files[0])
            with gathered([weight], modifier_rank=0), torch.no_grad():
                weight[3] = 0.5
            engine.engine.save_weights(files[1])
            before, after = (weights._read(str(it)) for it in files)
            before["blocks.1.up.weight"][3] = 0.5
            for name, value in after.items():
                self.assertTrue(torch.equal(value, before[name]), name)
        self.assertTrue((engine.state_dict()["blocks.1.up.weight"][3] == 0.5).all())
        self.assertEqual(len(train(engine, batches(2))), 2)
        engine.destroy()

    def test_takes_the_swap_of_an_average(self):
        """Swaps by parameter.data = tensor, there and back; the tensors keep their values."""
        module = tower()
        engine, _, _, _ = initialize(module)
        train(engine, batches(2))
        before = masters(engine.engine)
        kept = engine.state_dict()
        average = {name: value * 0.9 for name, value in kept.items()}
        copies = {name: value.clone() for name, value in average.items()}
        with torch.no_grad():
            expected = [engine(batches(1)[0]).item()]
        for values in (average, kept):
            with gathered(module.parameters(), modifier_rank=0):
                for name, it in module.named_parameters():
                    it.data = values[name]
            with torch.no_grad():
                expected.append(engine(batches(1)[0]).item())
        self.assertEqual(expected[0], expected[2])
        self.assertNotEqual(expected[0], expected[1])
        self.assertEqual(masters(engine.engine), before)
        for name, value in copies.items():
            self.assertTrue(torch.equal(average[name], value))
        with self.assertRaisesRegex(sluice.RefusedError, "modifier_rank=0"):
            with gathered(module.parameters()):
                module.norm.bias.data = torch.ones(16)
        self.assertEqual(masters(engine.engine), before)
        self.assertEqual(len(train(engine, batches(2))), 2)
        engine.destroy()

    def test_frozen_ones_are_what_a_checkpoint_goes_with(self):
        def frozen():
            module = tower()
            module.blocks[2].requires_grad_(False)
            return module

        with tempfile.TemporaryDirectory() as folder:
            module = frozen()
            with sluice.initialize(module, run_config()) as engine:
                small_modules.train(engine, batches(1))
                with gathered(module.blocks[2].up.bias, modifier_rank=0), torch.no_grad():
                    module.blocks[2].up.bias.fill_(0.25)
                self.assertTrue((engine.state_dict()["blocks.2.up.bias"] == 0.25).all())
                small_modules.train(engine, batches(1))
                engine.save_checkpoint(folder)
                expected = small_modules.train(engine, batches(2, seed=4))
            with sluice.initialize(frozen(), run_config()) as engine:
                with self.assertRaisesRegex(sluice.RefusedError, "frozen parameters"):
                    engine.load_checkpoint(folder)
            module = frozen()
            module.blocks[2].up.bias.data.fill_(0.25)
            with sluice.initialize(module, run_config()) as engine:
                engine.load_checkpoint(folder)
                self.assertEqual(small_modules.train(engine, batches(2, seed=4)), expected)

    def test_refuses_what_would_be_lost(self):
        module = tower()
        engine, _, _, _ = initialize(module)
        weight = module.blocks[1].up.weight
        train(engine, batches(1))
        before = masters(engine.engine)
        for options, factor, sentence in (
            ({}, 2, "modifier_rank=0"),
            ({"modifier_rank": 0}, float("nan"), "not finite"),
        ):
            with self.assertRaisesRegex(sluice.RefusedError, rf"blocks\.1\.up\.weight.*{sentence}"):
                with gathered([weight], **options), torch.no_grad():
                    weight.mul_(factor)
            self.assertEqual(masters(engine.engine), before)
        with self.assertRaisesRegex(ValueError, "own"), gathered([weight], modifier_rank=0):
            raise ValueError("its own")
        self.assertEqual(len(train(engine, batches(1))), 1)
        engine.destroy()

    def test_one_after_another_and_all_at_once(self):
        module = tower(blocks=8)
        weights = [it.up.weight.detach().clone() for it in module.blocks]
        with tempfile.TemporaryDirectory() as drive:
            with sluice.initialize(module, run_config(place="nvme", drive=drive)):
                for block, value in zip(module.blocks, weights):
                    with deepspeed.zero.GatheredParameters(block.parameters()):
                        self.assertTrue(torch.equal(block.up.weight, value))
                with deepspeed.zero.GatheredParameters(module.parameters()):
                    for block, value in zip(module.blocks, weights):
                        self.assertTrue(torch.equal(block.up.weight, value))
                with (
                    mock.patch("sluice._residency._free_bytes", return_value=1000),
                    self.assertRaisesRegex(sluice.Error, "fewer modules"),
                    deepspeed.zero.GatheredParameters(module.parameters()),
                ):
                    pass
                with deepspeed.zero.GatheredParameters(module.blocks[7]):
                    self.assertTrue(torch.equal(module.blocks[7].up.weight, weights[7]))

    def test_leaves_others_alone(self):
        plain = tower()
        with deepspeed.zero.GatheredParameters(plain.parameters(), modifier_rank=0):
            plain.head.weight.data.fill_(2)
        self.assertEqual(plain.head.weight.sum(), 2 * plain.head.weight.numel())


if __name__ == "__main__":
    unittest.main()
