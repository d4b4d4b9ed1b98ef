"""Accelerate's loop with the engine (sluice.accelerate), compared with the plain Accelerator."""

import sys
import tempfile
import unittest
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import sluice
from transformers_test import LLAMA, MISSING, VOCAB

if MISSING is None:
    import accelerate
    import transformers

    import sluice.accelerate as by_sluice

LENGTH = 12
ZERO = {"zero_optimization": {"stage": 3}, "gradient_clipping": 1.0}


def make():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def loader():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(0, VOCAB, (14, LENGTH), generator=generator)
    return DataLoader([{"input_ids": it, "labels": it} for it in rows], batch_size=2)


@unittest.skipIf(MISSING, MISSING)
class Loop(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def accelerator(self, config=None, **more):
        accelerate.state.AcceleratorState._reset_state(True)
        more = {"gradient_accumulation_steps": 3, "cpu": True, **more}
        if config is None:
            return accelerate.Accelerator(**more)
        made = by_sluice.Accelerator(sluice=config, **more)
        self.addCleanup(made.free_memory)
        return made

    def train(self, accelerator, epochs=2, save=None, load=None):
        """A script's loop: seven micro-batches per epoch, three of them per step."""
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = transformers.get_scheduler("cosine", optimizer, 2, 8)
        model, optimizer, batches, schedule = accelerator.prepare(
            model, optimizer, loader(), schedule
        )
        if load:
            accelerator.load_state(load)
        said = []
        for epoch in range(epochs):
            model.train()
            for batch in batches:
                with accelerator.accumulate(model):
                    loss = model(**batch).loss
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        said.append(float(norm))
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    said += [loss.item(), schedule.get_last_lr()[0]]
            if save and epoch == 0:
                accelerator.save_state(save)
        return model, said

    def begun(self, accelerator):
        """A model that is trained at a constant rate, and its batches."""
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model, _, batches = accelerator.prepare(model, optimizer, loader())
        return model, list(batches)

    def near(self, one, other):
        self.assertEqual(len(one), len(other))
        for a, b in zip(one, other):
            self.assertAlmostEqual(a, b, delta=1e-5 * max(1, abs(b)))

    def test_as_the_plain_accelerator(self):
        plain = self.accelerator()
        reference, expected = self.train(plain)
        accelerator = self.accelerator(ZERO)
        model, said = self.train(accelerator)
        self.near(said, expected)
        self.assertEqual(accelerator.engine.engine.backend, "engine")
        self.assertFalse(accelerator.optimizer_step_was_skipped)
        values = accelerator.get_state_dict(model)
        for name, value in plain.unwrap_model(reference).state_dict().items():
            self.assertLess((values[name] - value).abs().max().item(), 1e-4, name)
        unwrapped = accelerator.unwrap_model(model)
        self.assertIs(type(unwrapped), transformers.LlamaForCausalLM)
        unwrapped.save_pretrained(self.folder / "model", state_dict=values)
        again = transformers.LlamaForCausalLM.from_pretrained(self.folder / "model")
        for name, value in accelerator.get_state_dict(model).items():
            self.assertTrue(torch.equal(again.state_dict()[name], value), name)
        accelerator.save_model(model, self.folder / "saved")
        self.assertTrue((self.folder / "saved/model.safetensors").exists())

    def test_a_state_is_resumed(self):
        state = str(self.folder / "state")
        _, whole = self.train(self.accelerator(ZERO), save=state)
        _, rest = self.train(self.accelerator(ZERO), epochs=1, load=state)
        self.assertEqual(rest, whole[len(whole) // 2 :])

    def test_the_configurations_optimizer_and_schedule(self):
        config = {
            **ZERO,
            "train_micro_batch_size_per_gpu": "auto",
            "train_batch_size": "auto",
            "gradient_accumulation_steps": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
            "scheduler": {
                "type": "WarmupDecayLR",
                "params": {
                    "warmup_min_lr": "auto",
                    "warmup_max_lr": "auto",
                    "warmup_num_steps": "auto",
                    "total_num_steps": "auto",
                },
            },
        }
        accelerator = self.accelerator(config, mixed_precision="bf16")
        model = make()
        optimizer = by_sluice.DummyOptim(model.parameters(), lr=3e-3, weight_decay=0.2)
        schedule = by_sluice.DummyScheduler(optimizer, total_num_steps=20, warmup_num_steps=4)
        model, optimizer, batches, schedule = accelerator.prepare(
            model, optimizer, loader(), schedule
        )
        made = accelerator.engine.config
        self.assertEqual(made["optimizer"]["params"]["lr"], 3e-3)
        self.assertEqual(made["optimizer"]["params"]["weight_decay"], 0.2)
        self.assertEqual(made["scheduler"]["params"]["total_num_steps"], 20)
        self.assertEqual(made["scheduler"]["params"]["warmup_num_steps"], 4)
        self.assertEqual((made["train_batch_size"], made["bf16"]["enabled"]), (6, True))
        self.assertEqual(accelerator.mixed_precision, "bf16")
        for batch in batches:
            with accelerator.autocast(), accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
        self.assertEqual(model.global_steps, 3)

    def test_a_dummys_numbers_without_a_section(self):
        for config in (ZERO, {**ZERO, "optimizer": {"type": "AdamW", "params": {"eps": 1e-6}}}):
            accelerator = self.accelerator(config)
            model = make()
            optimizer = by_sluice.DummyOptim(model.parameters(), lr=3e-3, weight_decay=0.2)
            accelerator.prepare(model, optimizer, loader())
            params = accelerator.engine.config["optimizer"]["params"]
            self.assertEqual((params["lr"], params["weight_decay"]), (3e-3, 0.2))
        accelerator = self.accelerator(ZERO)
        model = make()
        optimizer = by_sluice.DummyOptim(model.parameters())
        schedule = by_sluice.DummyScheduler(optimizer, total_num_steps=20)
        with self.assertRaisesRegex(sluice.RefusedError, "no scheduler section"):
            accelerator.prepare(model, optimizer, loader(), schedule)

    def test_a_constant_schedule(self):
        accelerator = self.accelerator(ZERO)
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = transformers.get_scheduler("constant", optimizer)
        *_, schedule = accelerator.prepare(model, optimizer, loader(), schedule)
        schedule.step()
        self.assertEqual(schedule.get_last_lr(), [1e-2])

    def test_a_state_that_is_saved_again(self):
        """The newest state is loaded, even if a longer run has saved into the folder before."""
        state = self.folder / "state"
        accelerator = self.accelerator(ZERO)
        self.train(accelerator, save=str(state))
        accelerator.free_memory()
        accelerator = self.accelerator(ZERO)
        model, batches = self.begun(accelerator)
        with accelerator.accumulate(model):
            accelerator.backward(model(**batches[0]).loss)
        accelerator.save_state(str(state))  # between micro-batches
        self.assertEqual(len(list((state / "sluice/checkpoints").iterdir())), 1)
        self.assertEqual(model.global_steps, 0)
        accelerator.load_state(str(state))
        self.assertEqual(model.global_steps, 0)

    def test_more_micro_batches_than_a_step_has(self):
        """The step ends when Accelerate says so."""
        accelerator = self.accelerator(ZERO)
        model, batches = self.begun(accelerator)
        for step, count in enumerate((5, 2), 1):
            for number, batch in enumerate(batches[:count], 1):
                accelerator.gradient_state._set_sync_gradients(number == count)
                accelerator.backward(model(**batch).loss)
            self.assertEqual(model.global_steps, step)
            if step == 1:
                reference = make()
                for batch in batches[:count]:
                    (reference(**batch).loss / 3).backward()
                norm = torch.nn.utils.get_total_norm([it.grad for it in reference.parameters()])
                self.assertAlmostEqual(model.get_global_grad_norm(), norm.item(), delta=1e-5)

    def test_what_is_refused(self):
        def refused(sentence, call):
            with self.assertRaisesRegex(sluice.RefusedError, sentence):
                call()

        refused("needs a configuration", lambda: by_sluice.Accelerator(cpu=True))
        refused("deepspeed_plugin", lambda: self.accelerator(ZERO, deepspeed_plugin=object()))
        refused("fp8", lambda: self.accelerator(ZERO, mixed_precision="fp8"))
        accelerator = self.accelerator(ZERO)
        refused("no engine yet", lambda: accelerator.backward(torch.ones(())))
        refused("train_micro_batch_size", lambda: accelerator.prepare(make()))
        model = make()
        optimizer = torch.optim.AdamW(model.parameters())
        refused("in one call", lambda: accelerator.prepare(optimizer))
        two = (model, optimizer, optimizer)
        refused("takes one optimizer", lambda: accelerator.prepare(*two))
        model, batches = accelerator.prepare(make(), loader())
        refused("make another Accelerator", lambda: accelerator.prepare(make(), loader()))
        refused("in one call", lambda: accelerator.prepare(optimizer))
        refused(
            '"gradient_clipping": 0.5', lambda: accelerator.clip_grad_norm_(model.parameters(), 0.5)
        )
        refused("by the norm", lambda: accelerator.clip_grad_value_(model.parameters(), 0.5))


if __name__ == "__main__":
    sys.exit(unittest.main())
