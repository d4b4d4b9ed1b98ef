"""Hugging Face's Trainer with the engine (sluice.transformers), compared with the plain one."""

import shutil
import unittest
from pathlib import Path

import torch

import sluice
import sluice.deepspeed as deepspeed
from small_modules import batches, tower
from trainer_case import Rows, STEPS, TrainerCase, ZERO, logged, noisy_gpt2
from transformers_test import MISSING, make

if not MISSING:
    import transformers

    import sluice.transformers as by_sluice


class BesideThePlainOne(TrainerCase):
    def same(self, name, kinds=None, of=None, **options):
        """Compares our Trainer with the plain one: `kinds`, each with arguments of the class
        `of`."""
        kinds = kinds or (by_sluice.Trainer, transformers.Trainer)
        ours, theirs = (
            self.trainer(name, kind=kind, args=self.arguments(of, **options)) for kind in kinds
        )
        for it in (ours, theirs):
            transformers.set_seed(5)
            it.train()
        for key, delta in (
            ("loss", 1e-5),
            ("eval_loss", 1e-5),
            ("learning_rate", 1e-12),
            ("grad_norm", 1e-4),
            ("train_loss", 1e-5),
        ):
            got, expected = logged(ours, key), logged(theirs, key)
            self.assertEqual(len(got), len(expected), key)
            for step, (one, other) in enumerate(zip(got, expected)):
                self.assertAlmostEqual(one, other, delta=delta, msg=f"{name}, {key}, step {step}")
        self.assertEqual(len(logged(ours)), STEPS)
        self.assertEqual(ours.state.epoch, theirs.state.epoch)
        return ours, theirs

    def test_a_language_model(self):
        # An epoch has 10 micro-batches, so its last step has only one of three.
        ours, theirs = self.same(
            "gpt2", lr_scheduler_type="cosine", warmup_steps=3, eval_strategy="steps", eval_steps=7
        )
        state = ours.model.state_dict()
        for name, value in theirs.model.state_dict().items():
            self.assertTrue(torch.allclose(state[name], value, atol=1e-5), name)

    def test_a_classifier(self):
        options = {
            "lr_scheduler_kwargs": {"num_cycles": 2},
            "max_grad_norm": 0.1,
            "label_smoothing_factor": 0.1,
        }
        self.same("distilbert", lr_scheduler_type="cosine_with_restarts", **options)

    def test_an_encoder_with_a_decoder(self):
        ours, theirs = self.same(
            "blenderbot",
            (by_sluice.Seq2SeqTrainer, transformers.Seq2SeqTrainer),
            of=transformers.Seq2SeqTrainingArguments,
            predict_with_generate=True,
            generation_max_length=6,
            lr_scheduler_type="inverse_sqrt",
            warmup_steps=5,
        )
        predicted = [it.predict(Rows("blenderbot", 3, seed=4)).predictions for it in (ours, theirs)]
        self.assertEqual(predicted[0].shape[0], 3)
        self.assertTrue((predicted[0] == predicted[1]).all())

    def test_with_checkpointing_noise_and_workers(self):
        self.same(
            "gpt2",
            gradient_checkpointing=True,
            neftune_noise_alpha=5.0,
            dataloader_num_workers=2,
            lr_scheduler_type="constant",
        )

    def test_images_without_clipping(self):
        self.same(
            "vit",
            max_grad_norm=0.0,
            gradient_accumulation_steps=1,
            lr_scheduler_type="polynomial",
            lr_scheduler_kwargs={"power": 2.0},
        )

    def test_an_optimizer_and_a_schedule_that_are_handed_in(self):
        def options():
            model = make("gpt2")
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.3)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
            return {"model": model, "optimizers": (optimizer, schedule)}

        ours = self.trainer(**options())
        theirs = self.trainer(kind=transformers.Trainer, **options())
        for it in (ours, theirs):
            it.train()
        self.assertAlmostEqual(logged(ours)[-1], logged(theirs)[-1], delta=1e-5)
        self.assertEqual(logged(ours, "learning_rate")[0], 3e-3)


class Stream(torch.utils.data.IterableDataset):
    """Rows without a length: only iteration shows where they end."""

    def __init__(self, name, count):
        self.rows = Rows(name, count).rows

    def __iter__(self):
        return iter(self.rows)


class PassesThatEndWithinAStep(TrainerCase):
    """The plain Trainer counts a step's micro-batches from zero in each pass, and keeps the
    gradients of left-over ones."""

    STEPS = 6

    def train(self, kind, rows, units, resume=None, **options):
        out = self.folder / kind.__name__ / units / str(rows)
        args = self.arguments(max_steps=self.STEPS, output_dir=str(out), **options)
        more = {"units": units} if kind is by_sluice.Trainer else {}
        trainer = self.trainer(kind=kind, args=args, **more)
        trainer.train_dataset = Stream("gpt2", rows)
        transformers.set_seed(5)
        trainer.train(resume_from_checkpoint=resume and str(out / resume))
        return trainer

    def near(self, ours, theirs, where):
        for key, delta in (("loss", 1e-5), ("learning_rate", 1e-12), ("grad_norm", 1e-4)):
            got, expected = logged(ours, key), logged(theirs, key)
            self.assertEqual(len(got), len(expected), where)
            for step, (one, other) in enumerate(zip(got, expected)):
                self.assertAlmostEqual(one, other, delta=delta, msg=f"{where}, {key}, step {step}")
        self.assertEqual(ours.state.global_step, theirs.state.global_step)
        state = ours.model.state_dict()
        for name, value in theirs.model.state_dict().items():
            self.assertTrue(torch.allclose(state[name], value, atol=1e-5), f"{where}, {name}")

    def test_update_when_the_plain_trainer_does(self):
        # A pass has 4 micro-batches, and a step has 3 or 5.
        for units, rows in (("hooks", 7), ("engine", 10)):
            where = f"{units}, {rows} rows"
            kinds = (by_sluice.Trainer, transformers.Trainer)
            options = {"save_strategy": "steps", "save_steps": 1, "warmup_steps": 3}
            ours, theirs = (self.train(it, rows, units, **options) for it in kinds)
            self.near(ours, theirs, where)
            self.assertEqual(ours.engine.backend, units)
            self.end(ours)
            again = [self.train(it, rows, units, "checkpoint-3", **options) for it in kinds]
            self.near(*again, f"{where}, resumed")
            self.assertEqual(again[0].engine.backend, units)

    def test_are_saved_at_their_end(self):
        for units in ("hooks", "engine"):
            kinds = (by_sluice.Trainer, transformers.Trainer)
            ours, theirs = (self.train(it, 7, units, save_strategy="epoch") for it in kinds)
            self.near(ours, theirs, units)
            saved = sorted(it.name for it in Path(ours.args.output_dir).iterdir())
            expected = sorted(it.name for it in Path(theirs.args.output_dir).iterdir())
            self.assertEqual(saved, expected)
            self.end(ours)
            again = [self.train(it, 7, units, "checkpoint-3", save_strategy="epoch") for it in kinds]
            self.near(*again, f"{units}, resumed")


class Schedules(TrainerCase):
    KINDS = {
        "constant": {},
        "constant_with_warmup": {},
        "linear": {},
        "cosine": {"num_cycles": 0.4},
        "cosine_with_restarts": {"num_cycles": 3},
        "cosine_with_min_lr": {"min_lr": 1e-4},
        "polynomial": {"lr_end": 1e-5, "power": 1.5},
        "inverse_sqrt": {"timescale": 5},
        "warmup_stable_decay": {"num_decay_steps": 4, "decay_type": "1-sqrt", "min_lr_ratio": 0.1},
    }

    def test_have_the_rates_of_transformers(self):
        known = {it.value for it in transformers.SchedulerType}
        refused = {"reduce_lr_on_plateau", "greedy", "cosine_warmup_with_min_lr"}
        self.assertEqual(known, self.KINDS.keys() | refused)
        data = batches(1)[0]
        for kind, options in self.KINDS.items():
            module = tower(blocks=1)
            matrices = [it for it in module.parameters() if it.dim() > 1]
            vectors = [it for it in module.parameters() if it.dim() < 2]
            optimizer = torch.optim.AdamW([{"params": matrices}, {"params": vectors}], lr=1e-3)
            schedule = transformers.get_scheduler(kind, optimizer, 3, 12, options)
            config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": ZERO}
            engine, _, _, ours = deepspeed.initialize(
                model=module, optimizer=optimizer, lr_scheduler=schedule, config=config
            )
            for step in range(13):
                rate = engine.get_lr()[0]
                self.assertAlmostEqual(
                    rate, schedule.get_last_lr()[0], delta=1e-15, msg=f"{kind}, step {step}"
                )
                engine.backward(engine(data))
                engine.step()
                self.assertEqual(engine.engine.last_step.learning_rate, rate)
                optimizer.step()
                schedule.step()
            self.assertEqual(ours is None, kind == "constant")
            engine.destroy()


class Resuming(TrainerCase):
    def args(self, **more):
        return self.arguments(max_steps=12, save_strategy="steps", save_steps=5, **more)

    def test_has_the_undisturbed_runs_losses(self):
        whole = self.trainer(model=noisy_gpt2(), args=self.args())
        whole.train()
        expected = logged(whole), whole.model.state_dict()
        self.assertEqual(
            sorted(it.name for it in self.folder.glob("out/*")),
            ["checkpoint-10", "checkpoint-12", "checkpoint-5"],
        )
        self.end(whole)
        shutil.rmtree(self.folder / "out/checkpoint-12")
        for step, sluice_keys in ((10, None), (5, self.nvme())):
            again = self.trainer(model=noisy_gpt2(seed=3), args=self.args(), sluice=sluice_keys)
            again.train(resume_from_checkpoint=str(self.folder / f"out/checkpoint-{step}"))
            self.assertEqual(again.state.global_step, 12)
            self.assertEqual(logged(again), expected[0])
            for name, value in again.model.state_dict().items():
                self.assertTrue(torch.equal(value, expected[1][name]), name)
            self.end(again)

    def test_in_the_trainer_that_saved(self):
        one = self.trainer(model=noisy_gpt2(), args=self.args())
        one.train()
        expected = logged(one)
        with self.assertRaisesRegex(sluice.RefusedError, r"train\(\) .*second time"):
            one.train()
        one.train(resume_from_checkpoint=str(self.folder / "out/checkpoint-5"))
        self.assertEqual(logged(one), expected)
        one.evaluate()

    def test_refuses_half_a_checkpoint(self):
        self.trainer(args=self.args()).train()
        last = self.folder / "out/checkpoint-12"
        (last / "trainer_state.json").unlink()
        sentence = r"checkpoint-12 cannot be resumed: it has no trainer_state.json; .*-10 is complete"
        with self.assertRaisesRegex(sluice.RefusedError, sentence):
            self.trainer(args=self.args()).train(resume_from_checkpoint=True)
        shutil.rmtree(last)
        middle = self.folder / "out/checkpoint-10"
        manifest = next(middle.glob("sluice/checkpoints/*/checkpoint.json"))
        manifest.unlink()
        with self.assertRaisesRegex(sluice.Error, "checkpoint-10/sluice/.* removed"):
            self.trainer(args=self.args()).train(resume_from_checkpoint=True)
        shutil.rmtree(middle / "sluice")
        with self.assertRaisesRegex(sluice.RefusedError, "has no sluice"):
            self.trainer(args=self.args()).train(resume_from_checkpoint=str(middle))
        model = make("distilbert")
        other = self.trainer("distilbert", model=model, args=self.args())
        with self.assertRaisesRegex(sluice.RefusedError, "another module"):
            other.train(resume_from_checkpoint=str(self.folder / "out/checkpoint-5"))
        for name, value in make("distilbert").state_dict().items():  # the model is unchanged
            self.assertTrue(torch.equal(model.state_dict()[name], value), name)
        other.args.max_steps = 2
        other.train()

    def test_the_best_model_and_what_is_saved(self):
        args = self.args(
            eval_strategy="steps",
            eval_steps=5,
            load_best_model_at_end=True,
            save_total_limit=1,
            metric_for_best_model="loss",
            greater_is_better=True,
        )
        best = self.trainer(args=args)
        best.train()
        self.assertEqual(Path(best.state.best_model_checkpoint).name, "checkpoint-5")
        self.assertEqual(best.engine.global_step, 5)
        self.assertAlmostEqual(best.evaluate()["eval_loss"], best.state.best_metric, delta=1e-6)
        self.assertEqual([it.name for it in self.folder.glob("out/*")], ["checkpoint-5"])
        best.save_model(str(self.folder / "model"))
        again = transformers.GPT2LMHeadModel.from_pretrained(self.folder / "model")
        for name, value in best.model.state_dict().items():
            self.assertTrue(torch.equal(again.state_dict()[name], value), name)
        in_checkpoint = transformers.GPT2LMHeadModel.from_pretrained(
            self.folder / "out/checkpoint-5"
        )
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(in_checkpoint.state_dict()[name], value), name)

    def test_adapters_on_a_frozen_base(self):
        try:
            import peft
        except ImportError as error:
            self.skipTest(str(error))

        def adapted():
            recipe = peft.LoraConfig(
                r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
            )
            return peft.get_peft_model(make("llama"), recipe)

        whole = self.trainer("llama", model=adapted(), args=self.args(), sluice=self.nvme())
        theirs = self.trainer("llama", model=adapted(), kind=transformers.Trainer, args=self.args())
        theirs.train()
        shutil.rmtree(self.folder / "out")
        whole.train()
        for one, other in zip(logged(whole), logged(theirs)):
            self.assertAlmostEqual(one, other, delta=1e-5)
        self.assertTrue((self.folder / "out/checkpoint-5/adapter_model.safetensors").exists())
        self.end(whole)
        again = self.trainer("llama", model=adapted(), args=self.args())
        again.train(resume_from_checkpoint=str(self.folder / "out/checkpoint-5"))
        self.assertEqual(logged(again), logged(whole))


if __name__ == "__main__":
    unittest.main()
