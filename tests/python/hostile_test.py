"""The package sluice after failures: stale slots, exceptions, and refusals."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from random import Random

import torch
from torch.utils.checkpoint import checkpoint

import sluice
from small_modules import (
    DEVICE,
    PLACES,
    Block,
    Tower,
    batches,
    initialize,
    masters,
    torch_adamw,
    tower,
    train,
    train_by_torch,
    twin,
)


class StaleSlots(unittest.TestCase):
    """Memory that was given to another unit, while autograd still has views of the previous one."""

    def backward(self, module, tokens, **options):
        hidden = []
        with initialize(module, **options) as engine:
            handle = module.blocks[0].register_forward_pre_hook(
                lambda _, args: hidden.append(args[0])
            )
            loss = engine(tokens)
            handle.remove()
            hidden[0].retain_grad()
            engine.backward(loss)
            return hidden[0].grad.clone()

    def test_give_the_right_gradient(self):
        reference = tower(blocks=8)
        tokens = batches(1)[0]
        x = []
        handle = reference.blocks[0].register_forward_pre_hook(lambda _, args: x.append(args[0]))
        loss = reference(tokens)
        handle.remove()
        x[0].retain_grad()
        loss.backward()
        self.assertGreater(x[0].grad.abs().max().item(), 1e-3)
        with tempfile.TemporaryDirectory() as drive:
            for place in PLACES:
                gradient = self.backward(tower(blocks=8), tokens, place=place, drive=drive)
                self.assertTrue(torch.equal(gradient, x[0].grad), place)

    def test_throw_where_a_pass_gets_past_the_hooks(self):
        # Eight units share three buffers, so by then a block's memory has another block's numbers.
        # With views of the buffers themselves, this backward would return a wrong gradient without
        # an error.
        with tempfile.TemporaryDirectory() as drive:
            for place in PLACES:
                module = tower(blocks=8, tied=False)
                with initialize(module, place=place, drive=drive) as engine:
                    residency = engine._trained.residency
                    watch, residency._watch = residency._watch, lambda *_: None
                    loss = engine(batches(1)[0])
                    residency._watch = watch
                    with self.assertRaisesRegex(RuntimeError, r"blocks\.7 .* released"):
                        engine.backward(loss)
                    # The engine still works.
                    reference = twin(tower(blocks=8, tied=False))
                    expected = train_by_torch(reference, torch_adamw(reference), batches(3))
                    for got, wanted in zip(train(engine, batches(3)), expected, strict=True):
                        self.assertAlmostEqual(got, wanted, delta=1e-5)

    def test_throw_wherever_they_are_read(self):
        module = tower(blocks=2, tied=False)
        with initialize(module) as engine:
            weight = module.blocks[0].up.weight
            for read in (
                lambda: weight.sum(),
                lambda: weight.t().contiguous(),
                lambda: weight[0, 0].item(),
                lambda: weight.detach().cpu().numpy().sum(),
                lambda: weight.detach().fill_(0),
                lambda: repr(weight),
                lambda: torch.nn.functional.linear(torch.ones(1, 16), weight),
            ):
                with self.assertRaisesRegex(RuntimeError, "blocks.0"):
                    with torch.no_grad():
                        read()
            self.assertEqual(weight.shape, (64, 16))
            self.assertEqual(len(train(engine, batches(2))), 2)

    def test_a_loss_from_before_a_step_is_refused(self):
        for checkpointed in (False, True):
            module = tower(checkpointed=checkpointed)
            with initialize(module) as engine:
                old = engine(batches(1)[0])
                train(engine, batches(1))
                with self.assertRaisesRegex(RuntimeError, "changed since|inplace"):
                    engine.backward(old)
                self.assertEqual(len(train(engine, batches(2))), 2)


class Fail(torch.autograd.Function):
    """Raises in backward, on request."""

    error = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Fail.error is not None:
            error, Fail.error = Fail.error, None
            raise error
        return gradient


class Failing(Tower):
    """Raises in forward or backward of its third block, on request."""

    in_forward = None
    reentrant = None

    def hidden(self, tokens):
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if number == 2:
                x = Fail.apply(x)
                if self.in_forward is not None:
                    error, self.in_forward = self.in_forward, None
                    raise error
            x = (
                block(x)
                if self.reentrant is None
                else checkpoint(block, x, use_reentrant=self.reentrant)
            )
        return self.norm(x)


class Exceptions(unittest.TestCase):
    def module(self, reentrant=None):
        torch.manual_seed(0)
        module = Failing()
        module.reentrant = reentrant
        return module

    def test_leave_the_engine_usable(self):
        micro_batches = batches(8)
        no = ValueError("no")
        for place, reentrant, error in (
            ("cpu", None, no),
            ("cpu", False, no),
            ("cpu", True, no),
            ("cpu", None, KeyboardInterrupt()),
            ("nvme", False, no),
        ):
            with (
                self.subTest(place=place, reentrant=reentrant),
                tempfile.TemporaryDirectory() as drive,
            ):
                module = self.module(reentrant)
                with initialize(module, accumulation=2, place=place, drive=drive) as engine:
                    train(engine, micro_batches[:2])
                    # In forward, after a whole micro-batch: the step loses nothing.
                    train(engine, micro_batches[2:3])
                    module.in_forward = error
                    with self.assertRaises(type(error)):
                        engine(micro_batches[3])
                    self.assertFalse(any(engine._trained.residency._held))
                    train(engine, micro_batches[3:4])
                    # In backward: the step starts again.
                    train(engine, micro_batches[4:5])
                    loss = engine(micro_batches[5])
                    Fail.error = error
                    with self.assertRaises(type(error)):
                        engine.backward(loss)
                    self.assertFalse(any(engine._trained.residency._held))
                    self.assertTrue(all(it.grad is None for it in module.parameters()))
                    train(engine, micro_batches[4:])
                    got = masters(engine), engine.global_step
                with initialize(self.module(reentrant), accumulation=2) as engine:
                    train(engine, micro_batches)
                    self.assertEqual(got, (masters(engine), engine.global_step))

    def test_ctrl_c_at_any_moment_costs_a_step_at_most(self):
        micro_batches = batches(12)
        with initialize(tower(), accumulation=2) as engine:
            train(engine, micro_batches)
            expected = masters(engine)
        random = Random(3)
        interrupted = 0
        with tempfile.TemporaryDirectory() as drive:
            with initialize(tower(), accumulation=2, place="nvme", drive=drive) as engine:
                while engine.global_step < 6:
                    first = 2 * engine.global_step
                    # Interrupt from another thread while this one is anywhere, also in C++.
                    timer = threading.Timer(
                        random.uniform(0, 0.1), lambda: os.kill(os.getpid(), signal.SIGINT)
                    )
                    try:
                        if interrupted < 12:
                            timer.start()
                        train(engine, micro_batches[first : first + 2])
                        timer.join() if timer.ident else None
                    except KeyboardInterrupt:
                        interrupted += 1
                        engine.abandon()
                self.assertEqual(masters(engine), expected)
        self.assertGreater(interrupted, 5)

    def test_of_one_part_among_others_leave_nothing_held(self):
        module = tower()
        with initialize(module) as engine, torch.no_grad():
            with self.assertRaises(RuntimeError):
                module.blocks[1](torch.ones(1, 7))
            self.assertFalse(any(engine._trained.residency._held))


class Nested(unittest.TestCase):
    """Blocks that call one another, so that more than one is in use at a time."""

    def module(self):
        class Outer(Block):
            def __init__(self, inner):
                super().__init__()
                self.inner = [inner]  # hidden, so that it is not a child module

            def forward(self, x):
                return super().forward(x if self.inner[0] is None else self.inner[0](x))

        torch.manual_seed(0)
        module = Tower(blocks=0)
        inner = None
        for _ in range(5):
            inner = Outer(inner)
            module.blocks.append(inner)
        module.hidden = lambda tokens: module.norm(module.blocks[-1](module.embedding(tokens)))
        return module

    def test_are_trained_where_there_is_room(self):
        reference = self.module()
        expected = train_by_torch(reference, torch_adamw(reference), batches(4))
        with initialize(self.module(), place=PLACES[-1] if DEVICE == "cuda" else "cpu") as engine:
            for got, wanted in zip(train(engine, batches(4)), expected, strict=True):
                self.assertAlmostEqual(got, wanted, delta=1e-5)

    def test_are_refused_where_there_is_none(self):
        with tempfile.TemporaryDirectory() as drive:
            with initialize(self.module(), place="nvme", drive=drive) as engine:
                for _ in range(2):
                    with self.assertRaisesRegex(
                        sluice.Error, r"blocks\.3 .*blocks\.4 .*buffer_count"
                    ):
                        engine(batches(1)[0])
                with torch.no_grad():  # the innermost one calls no other block
                    engine.module.blocks[0](torch.ones(1, 16))


class Threads(unittest.TestCase):
    """One engine, and a second thread that saves, reads and evaluates while the first one
    trains."""

    def test_wait_for_each_other(self):
        data = batches(12)
        sentence = "checkpoint can only be saved between steps|another thread is running this module"
        for place in PLACES[:3]:
            with tempfile.TemporaryDirectory() as folder:
                drive = Path(folder) / "drive"
                drive.mkdir()
                options = {"place": place, "drive": drive}
                expected, losses = [], []
                with initialize(tower(), **options) as engine:
                    at_step = [masters(engine)]  # a save may precede the first step
                    for tokens in data:
                        expected += [train(engine, [tokens])]
                        at_step += [masters(engine)]
                with initialize(tower(), **options) as engine:
                    ended = threading.Event()
                    wrong, saved = [], []

                    def disturb(number):
                        calls = (
                            lambda: saved.append(engine.save_checkpoint(f"{folder}/{number}")),
                            lambda: engine.save_weights(f"{folder}/{number}.safetensors"),
                            engine.state_dict,
                            engine.wait,
                        )
                        while not ended.is_set():
                            for call in calls:
                                try:
                                    call()
                                except sluice.RefusedError as error:
                                    if not re.search(sentence, str(error)):
                                        wrong.append(error)
                                except BaseException as error:
                                    wrong.append(error)

                    threads = [threading.Thread(target=disturb, args=(it,)) for it in range(2)]
                    for it in threads:
                        it.start()
                    for tokens in data:
                        losses += [train(engine, [tokens])]
                    while len(saved) < 2 and not wrong:
                        time.sleep(0.01)
                    ended.set()
                    for it in threads:
                        it.join()
                    self.assertEqual(wrong, [], place)
                    self.assertEqual(losses, expected, place)
                    self.assertEqual(masters(engine), at_step[-1], place)
                    engine.load_checkpoint(saved[-1])
                    self.assertEqual(masters(engine), at_step[engine.global_step], place)

    def test_do_not_mix_in_the_modules_own_passes(self):
        inside, go_on = threading.Event(), threading.Event()
        module = tower()
        data = batches(2)
        with initialize(module) as engine:
            expected = engine(data[0]).item()

            def wait(*_):
                inside.set()
                go_on.wait(20)

            handle = module.blocks[1].register_forward_pre_hook(wait)
            losses = []
            thread = threading.Thread(target=lambda: losses.append(module(data[0]).item()))
            thread.start()
            self.assertTrue(inside.wait(20))
            handle.remove()
            for call in (
                lambda: module(data[1]),
                engine.state_dict,
                lambda: engine.save_weights("weights.safetensors"),
                lambda: engine(data[1]),
                engine.close,
            ):
                with self.assertRaisesRegex(sluice.RefusedError, "another thread"):
                    call()
            go_on.set()
            thread.join()
            self.assertEqual(losses, [expected])
            self.assertEqual(len(train(engine, data)), 2)

    def test_a_call_in_a_backward_pass_that_waits_for_it(self):
        """On a GPU, autograd has its own thread."""
        refused, data = [], batches(1)[0]
        with initialize(tower()) as engine:

            def hook(_):
                for call in (lambda: engine(data), engine.state_dict):
                    with self.assertRaisesRegex(sluice.RefusedError, r"during its own backward\(\)"):
                        call()
                    refused.append(call)

            leaf = torch.ones(1, requires_grad=True)
            leaf.register_hook(hook)
            with engine._trained.calls:
                thread = threading.Thread(target=leaf.sum().backward, daemon=True)
                thread.start()
                thread.join(20)
            self.assertEqual(len(refused), 2)


class NonFinite(unittest.TestCase):
    def poisoned(self, **more):
        module = tower()
        engine = initialize(module, **more)
        loss = engine(batches(1)[0])
        return engine, loss * float("nan")

    def test_gradients_stop_a_run_with_a_sentence(self):
        engine, loss = self.poisoned()
        with engine:
            before = masters(engine)
            engine.backward(loss)
            with self.assertRaisesRegex(
                sluice.NonFiniteGradientError,
                "step 1 .*not finite, .*unit .*micro-batch 1 of 1, loss nan",
            ):
                engine.step()
            self.assertEqual(masters(engine), before)
            self.assertEqual(len(train(engine, batches(2))), 2)

    def test_gradients_are_skipped_where_that_is_asked_for(self):
        engine, loss = self.poisoned(run={"non_finite_step": "skip"})
        with engine, self.assertLogs("sluice", "WARNING"):
            engine.backward(loss)
            done = engine.step()
            self.assertTrue(done.skipped)
            self.assertEqual((done.step, engine.global_step), (1, 1))

    def test_values_begin_nothing(self):
        module = tower()
        with torch.no_grad():
            module.blocks[1].up.weight[3, 4] = float("inf")
        with self.assertRaisesRegex(sluice.RefusedError, r"blocks\.1\.up\.weight .*not finite"):
            initialize(module)
        self.assertTrue(torch.isfinite(module.blocks[0].up.weight).all())  # the module is unchanged

    def test_fp16_scales_the_loss(self):
        module = tower()
        with initialize(
            module, fp16={"enabled": True, "initial_scale_power": 24, "hysteresis": 1}
        ) as engine:
            self.assertEqual(module.blocks[0].up.weight.dtype, torch.float16)
            results = []
            for tokens in batches(30):
                engine.backward(engine(tokens))
                results.append(engine.step())
            self.assertTrue(results[0].skipped)
            self.assertFalse(results[-1].skipped)
            self.assertLess(results[-1].loss_scale, 2.0**24)


class Ending(unittest.TestCase):
    def test_without_close_leaves_nothing_on_the_drive(self):
        code = (
            "import sys; sys.path.insert(0, sys.argv[1]); from small_modules import *; "
            "engine = initialize(tower(), place='nvme', drive=sys.argv[2]); train(engine, batches(2))"
        )
        with tempfile.TemporaryDirectory() as drive:
            done = subprocess.run(
                [sys.executable, "-c", code, str(Path(__file__).parent), drive],
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
            self.assertEqual(os.listdir(drive), [])


if __name__ == "__main__":
    unittest.main()
