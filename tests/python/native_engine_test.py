"""An engine of native units, which compute modules of transformers: its outputs, checkpoints and
failures."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

import torch

import sluice
from native_models import NativeCase, VOCAB, batches, by_torch, make, padded, train
from small_modules import DEVICE, masters, run_config, twin


class Outputs(NativeCase):
    def test_logits_are_there_when_asked_for(self):
        model = make("tied")
        reference = twin(model)
        engine = self.engine(model)
        batch = batches(1)[0]
        expected = reference(**batch).logits
        output = engine(**batch)
        self.assertEqual(list(output), ["loss", "logits"])
        self.assertLess((output.logits - expected).abs().max().item(), 1e-5)
        self.assertIs(output[1], output["logits"])
        self.assertIsNone(output.past_key_values)
        with self.assertRaisesRegex(sluice.RefusedError, 'made of outputs.logits.*units="hooks"'):
            engine.backward(output.logits.sum())
        self.assertEqual(engine.backend, "engine")
        later = engine(**batch)
        engine.backward(later.loss)
        engine.step()
        with self.assertRaisesRegex(sluice.RefusedError, "before engine.step"):
            later.logits  # noqa: B018
        with torch.no_grad():
            output = engine(**batch)
            self.assertFalse(output.logits.requires_grad)

    def test_inference_is_the_modules_own(self):
        model = make("gpt2")
        reference = twin(model)
        engine = self.engine(model)
        prompt = batches(1)[0]["input_ids"][:, :4]
        for it in (model, reference):
            it.eval()
        expected = reference.generate(prompt, max_new_tokens=6, do_sample=False)
        self.assertTrue(
            torch.equal(model.generate(prompt, max_new_tokens=6, do_sample=False), expected)
        )
        with torch.no_grad():
            self.assertTrue(
                torch.equal(engine(input_ids=prompt).logits, reference(input_ids=prompt).logits)
            )
        model.save_pretrained(self.folder)
        again = type(model).from_pretrained(self.folder)
        for key, value in reference.state_dict().items():
            self.assertTrue(torch.equal(again.state_dict()[key], value), key)

    def test_tensors_are_made_where_they_belong(self):
        """Not on torch's default device, which belongs to the script."""
        data = [*batches(2), padded(batches(1, seed=3)[0], left=True)]
        expected, engine = self.engine(make("llama")), self.engine(make("llama"))
        losses = train(expected, data)
        with torch.device("meta"):
            self.assertEqual(train(engine, data), losses)
            engine.save_checkpoint(self.folder / "a")
            engine.load_checkpoint(self.folder / "a")
            for name, value in engine.state_dict().items():
                self.assertTrue(torch.equal(value, expected.state_dict()[name]), name)

    def test_closed_and_loaded(self):
        model = make("llama")
        weights = make("llama", seed=5).state_dict()
        engine = self.engine(model)
        train(engine, batches(2))
        engine.load_weights(weights)
        self.assertEqual(engine.global_step, 0)
        for key, value in engine.state_dict().items():
            self.assertTrue(torch.equal(value, weights[key].cpu()), key)
        engine.close()
        self.assertNotIn("forward", model.__dict__)


class Checkpoints(NativeCase):
    def test_are_those_of_hooks(self):
        data = batches(6)
        expected = by_torch(make("gpt2"), data)
        for first, then in (("engine", "hooks"), ("hooks", "engine")):
            engine = self.engine(make("gpt2"), units=first)
            self.near(train(engine, data[:3]), expected[:3])
            engine.save_checkpoint(self.folder / first)
            engine.close()
            engine = self.engine(make("gpt2", seed=9), units=then)
            engine.load_checkpoint(self.folder / first)
            self.near(train(engine, data[3:]), expected[3:])

    def test_after_kill_9_has_the_same_bits(self):
        expected = list(run_of(self.folder / "whole", self.folder))
        self.assertEqual(len(expected), 7)
        process = subprocess.Popen(
            [sys.executable, "-B", __file__, str(self.folder / "killed"), str(self.folder)],
            stdout=subprocess.PIPE,
        )
        for number, _ in enumerate(process.stdout, start=1):
            if number == 3:
                process.kill()
        process.stdout.close()
        self.assertEqual(process.wait(), -signal.SIGKILL)
        logging.getLogger("sluice").setLevel(logging.CRITICAL)
        again = list(run_of(self.folder / "killed", self.folder))
        self.assertLess(len(again), 7)
        self.assertEqual(again, expected[-len(again) :])


class Failures(NativeCase):
    def test_leave_the_engine_usable(self):
        for accumulation, place in ((1, "cpu"), (2, "nvme")):
            data = batches(2 * accumulation)
            engine = self.engine(make("mistral"), accumulation, place, self.folder)
            native = engine._training.native
            with self.assertRaisesRegex(IndexError, "outside the vocabulary"):
                engine(input_ids=data[0]["input_ids"] + VOCAB, labels=data[0]["labels"])
            if DEVICE == "cpu":  # the units check it; a GPU is unusable after such an index
                with self.broken_checks(), self.assertRaises(IndexError):
                    engine(input_ids=data[0]["input_ids"] + VOCAB, labels=data[0]["labels"])
            loss = engine(**data[0]).loss
            engine.backward(loss)
            with self.assertRaisesRegex(sluice.RefusedError, "already ran"):
                engine.backward(loss)
            with self.caught_documents() as caught:
                loss = engine(**padded(data[0], left=True)).loss
            caught[0][0].resize_(0)  # makes a block's backward fail while its sums are open
            with self.assertRaises(IndexError):
                engine.backward(loss)
            self.assertIs(engine._training.native, native)
            expected = by_torch(make("mistral"), data, accumulation)
            self.near(train(engine, data), expected)

    @contextlib.contextmanager
    def broken_checks(self):
        check = sluice._micro_batch._check_facts
        sluice._micro_batch._check_facts = lambda *_: None
        try:
            yield
        finally:
            sluice._micro_batch._check_facts = check

    @contextlib.contextmanager
    def caught_documents(self):
        make_documents = sluice._micro_batch._documents
        caught = []

        def catch(*args):
            caught.append(make_documents(*args))
            return caught[-1]

        sluice._micro_batch._documents = catch
        try:
            yield caught
        finally:
            sluice._micro_batch._documents = make_documents

    @unittest.skipIf(DEVICE == "cpu", "of a GPU that computes nothing any more")
    def test_a_gpu_that_failed_is_an_exception(self):
        code = """
import native_models, sluice, torch
from small_modules import run_config
sluice._micro_batch._check_facts = lambda *_: None
data = native_models.batches(1)[0]
with sluice.initialize(native_models.make("mistral"), run_config(), units="engine") as engine:
    try:
        engine.backward(engine(input_ids=data["input_ids"] + native_models.VOCAB, labels=data["labels"]).loss)
    except RuntimeError as error:
        print("raised:", error)
print("closed")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertIn("raised: CUDA error: ", done.stdout)  # by any later call
        self.assertIn("closed", done.stdout)

    def test_a_stale_loss(self):
        engine = self.engine(make("gpt2"))
        batch = batches(1)[0]
        stale = engine(**batch).loss
        train(engine, [batch])
        for loss in (stale, stale * 2):
            with self.assertRaisesRegex(sluice.RefusedError, "before the parameters|changed since"):
                engine.backward(loss)
        with self.assertRaisesRegex(sluice.RefusedError, r"outside engine.backward"):
            engine(**batch).loss.backward()
        train(engine, [batch])

    def test_a_loss_of_ones_own_in_eval_mode(self):
        engine = sluice.initialize(make("gpt2").eval(), run_config())  # like from_pretrained()
        self.addCleanup(engine.close)
        batch = batches(1)[0]

        def loss():
            logits = engine(input_ids=batch["input_ids"]).logits
            return torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
            )

        with self.assertRaisesRegex(sluice.RefusedError, r"eval\(\) mode.*engine.train\(\)"):
            engine.backward(loss())
        engine.train()
        engine.backward(loss())
        engine.step()

    def test_losses_that_are_not_the_modules(self):
        engine = self.engine(make("gpt2"))
        batch = batches(1)[0]
        with self.assertRaisesRegex(sluice.RefusedError, 'without input_ids and labels.*"hooks"'):
            engine(input_ids=batch["input_ids"])
        engine.eval()
        logits = engine(input_ids=batch["input_ids"]).logits
        with self.assertRaisesRegex(sluice.RefusedError, "calling the engine"):
            engine.backward(logits.square().mean())
        self.assertEqual(len(train(engine, [batch])), 1)


def run_of(directory, drive):
    """The losses of a run that saves after each step, and its final state."""
    is_there = (directory / "checkpoints").exists()
    model = make("gpt2", seed=3 if is_there else 0)
    config = run_config(2, "nvme", drive, run={"keep_last": 1})
    with sluice.initialize(model, config, units="engine") as engine:
        if is_there:
            engine.load_checkpoint(directory)
        data = batches(12)
        for step in range(engine.global_step, 6):
            yield train(engine, data[2 * step : 2 * step + 2])[0]
            engine.save_checkpoint(directory)
        yield masters(engine)


if __name__ == "__main__":
    if len(sys.argv) == 3 and os.path.isabs(sys.argv[1]):
        for it in run_of(*map(Path, sys.argv[1:])):
            print(it, flush=True)
    else:
        unittest.main()
