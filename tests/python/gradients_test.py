"""Gradients that are stored on the drives between backward and update: every step has the bits of
one with gradients in RAM."""

import os
import tempfile
import unittest

import torch

import sluice
from small_modules import DEVICE, VOCAB, Block, Tower, batches, masters, run_config, tower, train

BITS = ({}, {"bf16": {"enabled": True}}, {"fp16": {"enabled": True, "initial_scale_power": 8}})


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sluice-gradients-")
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def config(self, on, place="nvme", **more):
        config = run_config(place=place, drive=self.path, **more)
        config["placement"]["gradients_to_nvme"] = "on" if on else "off"
        return config


class Trained(Folder):
    def trained(self, config, make=tower, count=6):
        with sluice.initialize(make(), config) as engine:
            losses = train(engine, batches(count))
            bytes_of = {tier: dict(lines) for tier, lines in engine.memory.items()}
            return losses, masters(engine), bytes_of

    def assert_same(self, make=tower, **config):
        expected = self.trained(self.config(on=False, **config), make)
        found = self.trained(self.config(on=True, **config), make)
        self.assertEqual(found[:2], expected[:2])
        self.assertGreater(found[2]["nvme"]["gradients"], 0)
        self.assertNotIn("gradients", expected[2]["nvme"])
        return expected[2]["host"], found[2]["host"]


class OnTheDrives(Trained):
    def test_change_no_bit(self):
        for bits in BITS:
            for accumulation in (1, 3):
                with self.subTest(bits=bits, accumulation=accumulation):
                    self.assert_same(accumulation=accumulation, gradient_clipping=0.1, **bits)

    def test_with_an_update_in_the_foreground_and_one_under_the_next_forward(self):
        for overlap in (False, True):
            self.assert_same(placement={"record_elements": 1024, "overlap_update": overlap})

    def test_of_checkpointed_frozen_and_unused_parts(self):
        def make():
            module = tower(checkpointed=True, tied=False)
            module.blocks[1].requires_grad_(False)
            module.blocks[2].up.requires_grad_(False)
            module.unused = torch.nn.Linear(3, 3)
            return module

        self.assert_same(make, accumulation=3)

    def test_are_forgotten_with_a_step_that_fails(self):
        class Failing(Tower):
            fails = False

            def forward(self, tokens):
                if self.fails:
                    raise ValueError("as asked")
                return super().forward(tokens)

        def losses(on):
            torch.manual_seed(0)
            module = Failing()
            with sluice.initialize(module, self.config(on, accumulation=2)) as engine:
                found = train(engine, batches(2))
                engine.backward(engine(batches(1, seed=5)[0]))
                module.fails = True
                with self.assertRaisesRegex(ValueError, "as asked"):
                    engine(batches(1)[0])
                module.fails = False
                engine.abandon()
                return found + train(engine, batches(4, seed=6)), masters(engine)

        self.assertEqual(losses(True), losses(False))

    def test_that_are_not_finite_are_skipped(self):
        bits = {"fp16": {"enabled": True, "initial_scale_power": 40}}
        self.assert_same(**bits)

    def test_a_checkpoint_goes_on_with_either(self):
        tokens = batches(4)
        with sluice.initialize(tower(), self.config(True)) as engine:
            train(engine, tokens[:2])
            engine.save_checkpoint(self.path + "/run")
            expected = train(engine, tokens[2:])
        for on in (True, False):
            with sluice.initialize(tower(), self.config(on)) as engine:
                engine.load_checkpoint(self.path + "/run")
                self.assertEqual(train(engine, tokens[2:]), expected)

    def test_leave_nothing_behind(self):
        self.trained(self.config(on=True), count=1)
        self.assertEqual(os.listdir(self.path), [])

    def test_a_full_drive_is_a_sentence(self):
        config = self.config(on=True)
        config["budget"] = {"nvme_gib": 1e-4}
        with self.assertRaisesRegex(sluice.Error, "nvme"):
            sluice.initialize(tower(), config)


@unittest.skipUnless(DEVICE == "cpu", "sizes are those of sums in RAM, where passes add to them")
class WithoutAGpu(Trained):
    def test_take_less_ram_than_they_are(self):
        before, after = self.assert_same(lambda: tower(blocks=20), bf16={"enabled": True})
        # 6 bytes per parameter before; after, only for 3 blocks and the parameters outside of
        # blocks.
        buffers = after["buffers for gradients on NVMe"]
        self.assertLess(after["gradients"] + buffers, before["gradients"] / 3)

    def test_go_there_by_themselves_where_the_rest_would_not_fit(self):
        wide = lambda: tower(blocks=20)  # noqa: E731
        # With all state in RAM, only what does not fit moves gradients, however fast the drive is.
        config = self.config(on=False, place="cpu")
        expected = self.trained(config, wide)
        del config["placement"]["gradients_to_nvme"]
        whole = sum(expected[2]["host"].values())
        lean = whole - expected[2]["host"]["gradients"] // 4
        budget = {"nvme_paths": [self.path], "cpu_gib": lean / 2**30}
        losses, bits, memory = self.trained({**config, "budget": budget}, wide)
        self.assertEqual((losses, bits), expected[:2])
        self.assertGreater(memory["nvme"]["gradients"], 0)
        self.assertLessEqual(sum(memory["host"].values()), lean)
        budget["cpu_gib"] = whole / 2**30 + 0.01
        roomy = self.trained({**config, "budget": budget}, wide)
        self.assertNotIn("gradients", roomy[2]["nvme"])

    def test_make_room_for_a_checkpoint_in_the_background(self):
        wide = lambda: tower(blocks=20)  # noqa: E731
        config = self.config(on=False, run={"checkpoint_background": "on"})
        expected = self.trained(config, wide)
        del config["placement"]["gradients_to_nvme"]
        lean = sum(expected[2]["host"].values()) - expected[2]["host"]["gradients"] // 4
        found = self.trained({**config, "budget": {"cpu_gib": lean / 2**30}}, wide)
        self.assertEqual(found[:2], expected[:2])
        self.assertIn("gradients", found[2]["nvme"])

    def test_move_once_a_micro_batch(self):
        class Wide(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = torch.nn.Embedding(VOCAB, 128)
                self.blocks = torch.nn.ModuleList(Block(width=128) for _ in range(8))

            def forward(self, tokens):
                x = self.embedding(tokens)
                for block in self.blocks:
                    x = block(x)
                return x.square().mean()

        def bytes_a_parameter(on, accumulation):
            module = Wide()
            count = sum(it.numel() for it in module.parameters())
            config = self.config(on, accumulation=accumulation, bf16={"enabled": True})
            run_dir = f"{self.path}/{on}-{accumulation}"
            with sluice.initialize(module, config, run_dir=run_dir) as engine:
                train(engine, batches(8 * accumulation))
            # On a busy machine, a step's last writes are counted in the next one.
            steps = sluice.metrics(run_dir)[1:]
            moved = sum(it["nvme_read_bytes"] + it["nvme_write_bytes"] for it in steps)
            return moved / len(steps) / count

        for accumulation in (1, 2):
            more = bytes_a_parameter(True, accumulation) - bytes_a_parameter(False, accumulation)
            # Records have a header, and end at a page boundary.
            self.assertGreater(more, 5 * accumulation)
            self.assertLess(more, 13 * accumulation)


class Refused(Folder):
    def test_by_name(self):
        cases = [(self.config(True, place="cpu"), "no folder")]
        if DEVICE == "cpu":
            cases.append((self.config(True, accumulation=4, run={"lanes": 2}), "run.lanes"))
        for config, text in cases:
            with self.subTest(text), self.assertRaisesRegex(sluice.Error, text):
                sluice.initialize(tower(), config)


if __name__ == "__main__":
    unittest.main()
