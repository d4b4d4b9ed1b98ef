"""What is read and changed of a module between steps, with the package sluice: evaluation, state
dicts, gathered and loaded weights."""

import tempfile
import unittest

import torch

import sluice
from small_modules import (
    DEVICE,
    LENGTH,
    PLACES,
    WIDTH,
    batches,
    initialize,
    masters,
    torch_adamw,
    tower,
    train,
    train_by_torch,
    twin,
)


class Evaluation(unittest.TestCase):
    def test_changes_nothing_and_sees_the_newest_weights(self):
        module = tower()
        reference = twin(module)
        micro_batches = batches(6)
        optimizer = torch_adamw(reference)
        with initialize(module) as engine:
            for tokens in micro_batches:
                train(engine, [tokens])
                train_by_torch(reference, optimizer, [tokens])
                engine.eval()
                with torch.no_grad():
                    self.assertAlmostEqual(
                        engine(micro_batches[0]).item(),
                        reference(micro_batches[0]).item(),
                        delta=1e-5,
                    )
                engine.train()
                self.assertTrue(module.training)

    def test_of_a_part_that_is_called_by_itself(self):
        module = tower()
        reference = twin(module)
        x = torch.randn(1, LENGTH, WIDTH)
        with initialize(module), torch.no_grad():
            self.assertTrue(torch.equal(module.blocks[1](x), reference.blocks[1](x)))
            self.assertTrue(torch.equal(module.blocks[1].up(x), reference.blocks[1].up(x)))
            self.assertTrue(torch.equal(module.head(x), reference.head(x)))

    def test_state_dict_has_all_values_and_ties(self):
        module = tower()
        reference = twin(module)
        with initialize(module) as engine:
            state = engine.state_dict()
            self.assertEqual(state.keys(), reference.state_dict().keys())
            for name, value in reference.state_dict().items():
                self.assertTrue(torch.equal(state[name], value.cpu()), name)
            self.assertEqual(state["head.weight"].data_ptr(), state["embedding.weight"].data_ptr())
            part = module.blocks[0].state_dict()
            self.assertTrue(torch.equal(part["up.weight"], reference.blocks[0].up.weight.cpu()))

    def test_parameters_can_be_gathered_and_read(self):
        for place in PLACES:
            module = tower()
            reference = twin(module)
            with (
                tempfile.TemporaryDirectory() as drive,
                initialize(module, place=place, drive=drive) as engine,
            ):
                with engine.gathered(module.blocks[1].up.weight, module.head.weight):
                    self.assertTrue(
                        torch.equal(module.blocks[1].down.bias, reference.blocks[1].down.bias)
                    )
                    self.assertTrue(torch.equal(module.head.weight, reference.head.weight))
                    with self.assertRaisesRegex(RuntimeError, r"blocks\.2"):
                        module.blocks[2].up.weight.sum()
                with self.assertRaisesRegex(RuntimeError, r"blocks\.1"):
                    module.blocks[1].up.weight.sum()
                with self.assertRaisesRegex(sluice.RefusedError, r"blocks\.1\.up\.bias .*in place"):
                    with engine.gathered(module.blocks[1].up.bias), torch.no_grad():
                        module.blocks[1].up.bias.zero_()

    def test_more_units_are_gathered_than_there_is_room_for(self):
        for place in PLACES:
            module, reference = tower(blocks=7), tower(blocks=7)
            with (
                tempfile.TemporaryDirectory() as drive,
                initialize(module, place=place, drive=drive) as engine,
            ):
                everything, bias = list(module.parameters()), module.blocks[5].up.bias
                with torch.no_grad():
                    expected = engine(batches(1)[0])
                    with engine.gathered(*everything):
                        for (name, it), value in zip(
                            module.named_parameters(), reference.parameters()
                        ):
                            self.assertTrue(torch.equal(it, value), f"{place} {name}")
                        self.assertEqual(engine(batches(1)[0]), expected)
                        self.assertEqual(len(engine.state_dict()), len(module.state_dict()))
                    with self.assertRaisesRegex(sluice.RefusedError, "was changed in place"):
                        with engine.gathered(*everything):
                            bias.add_(1)
                    with engine.changing(*everything):
                        bias.fill_(0.5)
                    reference.blocks[5].up.bias.fill_(0.5)
                with self.assertRaisesRegex(RuntimeError, r"blocks\.5"):
                    bias.sum()
                self.assertTrue((engine.state_dict()["blocks.5.up.bias"] == 0.5).all())
                losses = train_by_torch(reference, torch_adamw(reference), batches(3))
                for one, other in zip(train(engine, batches(3)), losses):
                    self.assertAlmostEqual(one, other, delta=1e-5)

    def test_steps_while_copies_are_gathered(self):
        """A step ends copies, which have the values from before it."""
        data = batches(4)
        for place in ("nvme",) + (("cpu",) if DEVICE == "cuda" else ()):
            with tempfile.TemporaryDirectory() as drive:
                with initialize(tower(blocks=7), place=place, drive=drive) as engine:
                    expected, weights = train(engine, data), masters(engine)
            with tempfile.TemporaryDirectory() as drive:
                with initialize(tower(blocks=7), place=place, drive=drive) as engine:
                    module = engine.module
                    with engine.gathered(*module.parameters()):
                        self.assertEqual(train(engine, data), expected)
                        with self.assertRaisesRegex(RuntimeError, r"blocks\.3"):
                            module.blocks[3].up.weight.sum()
                    self.assertEqual(masters(engine), weights)

    def test_all_changes_of_copies_are_refused_at_once(self):
        with tempfile.TemporaryDirectory() as drive, torch.no_grad():
            module = tower(blocks=7)
            with initialize(module, place="nvme", drive=drive) as engine:
                weights = masters(engine)
                with self.assertRaisesRegex(
                    sluice.RefusedError, r"blocks\.1\.up\.bias, blocks\.4\.up\.bias was changed"
                ):
                    with engine.gathered(*module.parameters()):
                        module.blocks[1].up.bias.add_(1)
                        module.blocks[4].up.bias.add_(1)
                with torch.enable_grad():
                    self.assertEqual(len(train(engine, batches(1))), 1)
                with engine.gathered(*module.parameters()), torch.inference_mode():
                    module.blocks[1].up.bias.sum()
                self.assertNotEqual(masters(engine), weights)

    def test_a_swap_is_still_refused_after_all_was_gathered(self):
        with tempfile.TemporaryDirectory() as drive:
            module = tower(blocks=7)
            with initialize(module, place="nvme", drive=drive) as engine:
                bias = module.blocks[2].up.bias
                bias.data = torch.zeros_like(bias.detach(), device=bias.device)
                for call in (
                    lambda: engine.gathered(*module.parameters()).__enter__(),
                    lambda: train(engine, batches(1)),
                ):
                    with self.assertRaisesRegex(sluice.RefusedError, "engine's memory"):
                        call()

    def test_closed_while_copies_are_gathered(self):
        module, reference = tower(blocks=7), tower(blocks=7)
        with tempfile.TemporaryDirectory() as drive:
            engine = initialize(module, place="nvme", drive=drive)
            with engine.gathered(*module.parameters()):
                engine.close(keep_values=True)
            for (name, it), value in zip(module.named_parameters(), reference.parameters()):
                self.assertTrue(torch.equal(it.cpu(), value.cpu()), name)

    def test_weights_can_be_loaded(self):
        module = tower()
        other = tower(seed=9)
        with initialize(module) as engine:
            train(engine, batches(2))
            engine.load_weights(other.state_dict())
            losses = train(engine, batches(3))
        self.assertEqual(
            losses, train_by_torch(other, torch_adamw(other), batches(3))[:1] + losses[1:]
        )
        self.assertEqual(engine.last_step.step, 3)


if __name__ == "__main__":
    unittest.main()
