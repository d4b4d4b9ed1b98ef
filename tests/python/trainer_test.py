"""Hugging Face's Trainer by the engine (sluice.transformers), beside the plain one."""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch

import sluice
import sluice.deepspeed as deepspeed
from small_modules import batches, tower
from transformers_test import MISSING, MODELS, make, micro_batches

if not MISSING:
    import transformers
    from transformers import TrainerCallback, TrainingArguments

    import sluice.transformers as by_sluice

ZERO = {
    "stage": 3,
    "stage3_param_persistence_threshold": 0,
    "offload_param": {"device": "cpu"},
    "offload_optimizer": {"device": "cpu"},
}
STEPS = 20


class Rows(torch.utils.data.Dataset):
    def __init__(self, name, count, seed=1):
        made = micro_batches(name, count, seed)
        self.rows = [{key: value[0] for key, value in it.items()} for it in made]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def noisy_gpt2(seed=0):
    numbers = {**MODELS["gpt2"][2], "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    torch.manual_seed(seed)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**numbers))


def logged(trainer, key="loss"):
    return [it[key] for it in trainer.state.log_history if key in it]


@unittest.skipIf(MISSING, MISSING)
class TrainerCase(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        warnings.simplefilter("ignore")
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def arguments(self, kind=None, **more):
        options = {
            "output_dir": str(self.folder / "out"),
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 3,
            "max_steps": STEPS,
            "learning_rate": 1e-3,
            "weight_decay": 0.1,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            "seed": 5,
            **more,
        }
        return (kind or TrainingArguments)(**options)

    def trainer(self, name="gpt2", model=None, kind=None, args=None, sluice=None, **more):
        kind = kind or by_sluice.Trainer
        if issubclass(kind, by_sluice.TrainerMixin):
            more["sluice"] = sluice or {"zero_optimization": ZERO}
        made = kind(
            model=model or make(name),
            args=args or self.arguments(),
            train_dataset=Rows(name, 20),
            eval_dataset=Rows(name, 5, seed=2),
            **more,
        )
        made.pop_callback(transformers.PrinterCallback)
        self.addCleanup(lambda: self.end(made))
        return made

    def end(self, trainer):
        """Another one may write to its folders."""
        if getattr(trainer, "engine", None) is not None:
            trainer.engine.close()

    def nvme(self):
        drive = {"device": "nvme", "nvme_path": str(self.folder)}
        return {
            "zero_optimization": {
                **ZERO,
                "offload_param": {**drive, "buffer_count": 3},
                "offload_optimizer": drive,
            }
        }


class BesideThePlainOne(TrainerCase):
    def same(self, name, kinds=None, of=None, **options):
        """Ours and the plain one: `kinds`, each with arguments `of` that class."""
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
        # An epoch has 10 micro-batches: its last step has one of the three.
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
    """Rows without a length: a pass over them ends where it ends."""

    def __init__(self, name, count):
        self.rows = Rows(name, count).rows

    def __iter__(self):
        return iter(self.rows)


class PassesThatEndWithinAStep(TrainerCase):
    """The plain Trainer counts a step's micro-batches anew in each pass, and keeps the gradients of
    those that were left over."""

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
        # A pass has 4 micro-batches of a step's 3, or 5.
        for units, rows in (("hooks", 7), ("engine", 10)):
            where = f"{units}, {rows} rows"
            kinds = (by_sluice.Trainer, transformers.Trainer)
            options = {"save_strategy": "steps", "save_steps": 1, "warmup_steps": 3}
            ours, theirs = (self.train(it, rows, units, **options) for it in kinds)
            self.near(ours, theirs, where)
            self.assertEqual(ours.engine.way, units)
            self.end(ours)
            again = [self.train(it, rows, units, "checkpoint-3", **options) for it in kinds]
            self.near(*again, f"{where}, resumed")
            self.assertEqual(again[0].engine.way, units)

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
        with self.assertRaisesRegex(sluice.RefusedError, "train\\(\\) again"):
            one.train()
        one.train(resume_from_checkpoint=str(self.folder / "out/checkpoint-5"))
        self.assertEqual(logged(one), expected)
        one.evaluate()

    def test_refuses_half_a_checkpoint(self):
        self.trainer(args=self.args()).train()
        last = self.folder / "out/checkpoint-12"
        (last / "trainer_state.json").unlink()
        sentence = r"checkpoint-12 cannot be resumed: it has no trainer_state.json; .*-10 is whole"
        with self.assertRaisesRegex(sluice.RefusedError, sentence):
            self.trainer(args=self.args()).train(resume_from_checkpoint=True)
        shutil.rmtree(last)
        middle = self.folder / "out/checkpoint-10"
        manifest = next(middle.glob("sluice/checkpoints/*/checkpoint.json"))
        manifest.unlink()
        with self.assertRaisesRegex(sluice.Error, "checkpoint-10/sluice/.* has lost that file"):
            self.trainer(args=self.args()).train(resume_from_checkpoint=True)
        shutil.rmtree(middle / "sluice")
        with self.assertRaisesRegex(sluice.RefusedError, "has no sluice"):
            self.trainer(args=self.args()).train(resume_from_checkpoint=str(middle))
        model = make("distilbert")
        other = self.trainer("distilbert", model=model, args=self.args())
        with self.assertRaisesRegex(sluice.RefusedError, "another module"):
            other.train(resume_from_checkpoint=str(self.folder / "out/checkpoint-5"))
        for name, value in make("distilbert").state_dict().items():  # it is as it was
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


class Configurations(TrainerCase):
    AUTO = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
                "total_num_steps": "auto",
                "warmup_type": "linear",
            },
        },
        "zero_optimization": {
            **ZERO,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": "auto",
        },
        "wall_clock_breakdown": False,
    }

    def auto(self, **changes):
        keys = json.loads(json.dumps(self.AUTO))
        for path, value in changes.items():
            *sections, key = path.split("__")
            section = keys
            for it in sections:
                section = section[it]
            section[key] = value
        return keys

    def test_auto_is_what_the_arguments_say(self):
        path = self.folder / "ds.json"
        text = "// of a colleague\n" + json.dumps(self.AUTO)[:-1] + ", # the end\n}"
        path.write_text(text)
        args = self.arguments(
            max_steps=6,
            bf16=True,
            warmup_steps=2,
            adam_beta2=0.95,
            adam_epsilon=1e-7,
            max_grad_norm=0.5,
        )
        one = self.trainer(args=args, sluice=str(path))
        one.train()
        config = one.engine.config
        self.assertEqual(one.engine.dtype, torch.bfloat16)
        self.assertEqual([config[it] for it in ("train_batch_size", "gradient_clipping")], [6, 0.5])
        params = config["optimizer"]["params"]
        self.assertEqual(
            (params["lr"], params["betas"], params["eps"], params["weight_decay"]),
            (1e-3, [0.9, 0.95], 1e-7, 0.1),
        )
        self.assertEqual(params["decayed"], "all")  # as DeepSpeed has it
        params = config["scheduler"]["params"]
        self.assertEqual(
            (params["warmup_max_lr"], params["warmup_num_steps"], params["total_num_steps"]),
            (1e-3, 2, 6),
        )
        zero = config["zero_optimization"]
        self.assertEqual(zero["reduce_bucket_size"], 32 * 32)
        self.assertEqual(zero["stage3_param_persistence_threshold"], 10 * 32)
        self.assertLess(logged(one)[-1], logged(one)[0])
        self.assertEqual(path.read_text(), text)

    def test_a_schedule_of_hugging_faces_in_the_configuration(self):
        keys = {
            "zero_optimization": ZERO,
            "scheduler": {
                "type": "linear",
                "params": {"warmup_num_steps": "auto", "total_num_steps": "auto"},
            },
        }
        ours = self.trainer(sluice=keys)
        theirs = self.trainer(kind=transformers.Trainer)
        for it in (ours, theirs):
            it.train()
        self.assertEqual(logged(ours, "learning_rate"), logged(theirs, "learning_rate"))

    def test_what_does_not_match(self):
        wrong = self.auto(
            gradient_accumulation_steps=2,
            gradient_clipping=0.1,
            bf16__enabled="true",
            optimizer__params__lr=0.5,
            optimizer__params__betas=[0.1, 0.2],
            scheduler__params__total_num_steps=7,
            scheduler__params__warmup_num_steps=5,
        )
        model = make("gpt2")
        with self.assertRaises(sluice.RefusedError) as caught:
            self.trainer(model=model, sluice=wrong).train()
        sentence = str(caught.exception)
        for part in (
            "gradient_accumulation_steps is 2 in the configuration, and",
            "max_grad_norm",
            "bf16.enabled is True",
            "learning_rate is 0.001",
            "[adam_beta1, adam_beta2]",
            "total_num_steps is 7",
            "warmup_num_steps is 5",
        ):
            self.assertIn(part, sentence)
        self.assertEqual(sentence.count("\n"), 7)
        model(**micro_batches("gpt2", 1)[0]).loss.backward()  # it is as it was
        with self.assertRaisesRegex(sluice.RefusedError, "per_device_train_batch_size x"):
            self.trainer(sluice=self.auto(train_batch_size=5)).train()

    def test_a_run_file_and_what_it_does_not_mention(self):
        run = {
            "model": {"preset": "gpt2-small"},
            "zero_optimization": ZERO,
            "run": {"seed": 4},
            "placement": {"record_elements": 65536},
        }
        one = self.trainer(args=self.arguments(max_steps=4, max_grad_norm=0.25), sluice=run)
        one.train()
        self.assertEqual(one.engine.config["gradient_clipping"], 0.25)
        self.assertEqual(one.engine.micro_batches, 3)
        # As the plain Trainer: neither biases nor norms decay.
        decays = {it["weight_decay"]: it["params"] for it in one.optimizer.param_groups}
        self.assertEqual(sorted(decays), [0.0, 0.1])
        self.assertTrue(all(it.dim() == 1 for it in decays[0.0]))
        with self.assertRaisesRegex(sluice.RefusedError, "cpu_threds"):
            self.trainer(sluice={**run, "run": {"cpu_threds": 1}}).train()
        with self.assertRaisesRegex(sluice.RefusedError, "run.device is not cpu"):
            self.trainer(sluice={**run, "run": {"device": "cuda"}}).train()
        with self.assertRaisesRegex(sluice.RefusedError, "cannot be read"):
            self.trainer(sluice="/nowhere.json")
        with self.assertRaisesRegex(sluice.RefusedError, "needs sluice="):
            by_sluice.Trainer(model=make("gpt2"), args=self.arguments())


class Uses(TrainerCase):
    def test_callbacks_and_evaluation(self):
        seen = []

        class Watch(TrainerCallback):
            def on_step_end(self, args, state, control, optimizer=None, lr_scheduler=None, **_):
                seen.append((optimizer.param_groups[0]["lr"], lr_scheduler.get_last_lr()[0]))
                control.should_training_stop = state.global_step == 5

            def on_train_begin(self, args, state, control, model=None, **_):
                seen.append(sum(it.numel() for it in model.parameters()))

        one = self.trainer(
            callbacks=[Watch()], compute_metrics=lambda it: {"rows": len(it.label_ids)}
        )
        self.assertEqual(one.evaluate()["eval_rows"], 5)  # before there is an engine
        one.train()
        self.assertEqual(one.state.global_step, 5)
        self.assertEqual(len(seen), 6)
        self.assertTrue(all(one == other for one, other in seen[1:]))
        self.assertEqual(one.evaluate()["eval_rows"], 5)
        self.assertEqual(
            one.model.generate(
                torch.ones(1, 2, dtype=torch.long), max_new_tokens=3, do_sample=False
            ).shape,
            (1, 5),
        )

    def test_goes_on_after_an_exception(self):
        class Failing(Rows):
            read = 0

            def __getitem__(self, number):
                self.read += 1
                row = super().__getitem__(number)
                return {**row, "input_ids": row["input_ids"] + 10**6 * (self.read == 16)}

        def args(name):
            return self.arguments(
                output_dir=str(self.folder / name), save_strategy="steps", save_steps=1, max_steps=5
            )

        undisturbed = self.trainer(args=args("undisturbed"))
        undisturbed.train()
        one = self.trainer(args=args("disturbed"))
        one.train_dataset = Failing("gpt2", 20)
        with self.assertRaises(IndexError):  # in the third step's second micro-batch
            one.train()
        self.assertEqual((one.state.global_step, one.engine.global_step), (2, 2))
        self.assertGreater(one.evaluate()["eval_loss"], 0)
        one.train(resume_from_checkpoint=True)
        self.assertEqual(logged(one), logged(undisturbed))

    def test_models_that_are_made_anew(self):
        one = by_sluice.Trainer(
            model_init=lambda trial: make("gpt2"),
            args=self.arguments(max_steps=3),
            train_dataset=Rows("gpt2", 20),
            sluice={"zero_optimization": ZERO},
        )
        one.pop_callback(transformers.PrinterCallback)
        one.train()
        first = logged(one)
        one.train()
        self.assertEqual(logged(one), first)

    def test_a_trainer_of_ones_own(self):
        class Mine(by_sluice.TrainerMixin, transformers.Trainer):
            def create_optimizer(self, model=None):
                self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
                return self.optimizer

            def compute_loss(self, model, inputs, return_outputs=False, **_):
                outputs = model(**inputs)
                loss = outputs.loss + 0.01 * model(**inputs).logits.square().mean()
                return (loss, outputs) if return_outputs else loss

        one = self.trainer(kind=Mine, args=self.arguments(max_steps=5))
        one.train()
        self.assertEqual(one.engine.config["optimizer"]["params"]["lr"], 2e-3)
        self.assertLess(logged(one)[-1], logged(one)[0])

    @unittest.skipIf(importlib.util.find_spec("deepspeed"), "DeepSpeed is here, and has its own way")
    def test_deepspeeds_json_may_stay_in_the_arguments(self):
        config = {"zero_optimization": ZERO, "train_batch_size": "auto", "gradient_clipping": "auto"}
        (self.folder / "ds.json").write_text(json.dumps(config), encoding="utf-8")
        for given in (config, json.dumps(config), str(self.folder / "ds.json")):
            args = self.arguments(deepspeed=given, max_steps=2)
            for _ in range(2):  # also a second Trainer
                one = by_sluice.Trainer(model=make("gpt2"), args=args, train_dataset=Rows("gpt2", 20))
                self.addCleanup(self.end, one)
                one.train()
                self.assertEqual(one.engine.config["zero_optimization"]["stage"], ZERO["stage"])
                self.assertEqual(one.engine.config["train_batch_size"], 6)
                self.end(one)
        args = self.arguments(deepspeed=config)
        with (
            mock.patch.dict(os.environ),  # Accelerate notes there that DeepSpeed is wanted
            self.assertRaisesRegex(ImportError, "DeepSpeed is not installed"),
        ):
            transformers.Trainer(model=make("gpt2"), args=args, train_dataset=Rows("gpt2", 4))
        with self.assertRaisesRegex(sluice.RefusedError, "leave one out"):
            by_sluice.Trainer(model=make("gpt2"), args=args, sluice={"zero_optimization": ZERO})

    def test_arguments_that_are_refused(self):
        for name, value in (
            ("auto_find_batch_size", True),
            ("bf16_full_eval", True),
            ("torch_compile", True),
        ):
            with self.assertRaisesRegex(sluice.RefusedError, name):
                self.trainer(args=self.arguments(**{name: value}))
        with self.assertRaisesRegex(sluice.RefusedError, "save_only_model"):
            self.trainer(
                args=self.arguments(
                    save_only_model=True,
                    load_best_model_at_end=True,
                    eval_strategy="steps",
                    save_strategy="steps",
                    eval_steps=1,
                    save_steps=1,
                )
            )
        for options, sentence in (
            ({"optim": "adafactor"}, "Adafactor"),
            ({"optim": "sgd"}, "SGD"),
            ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"}, "Plateau"),
            (
                {
                    "lr_scheduler_type": "cosine_warmup_with_min_lr",
                    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
                },
                "min_lr",
            ),
        ):
            with self.assertRaisesRegex(sluice.RefusedError, sentence):
                self.trainer(args=self.arguments(**options)).train()
        optimizer = torch.optim.AdamW(make("gpt2").parameters())
        with self.assertRaisesRegex(sluice.RefusedError, "no parameter of the model"):
            self.trainer(optimizers=(optimizer, None)).train()
        args = self.arguments()
        with mock.patch.dict(os.environ, {"OMPI_COMM_WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(sluice.RefusedError, "OMPI_COMM_WORLD_SIZE"):
                self.trainer(args=args)


if __name__ == "__main__":
    sys.exit(unittest.main())
