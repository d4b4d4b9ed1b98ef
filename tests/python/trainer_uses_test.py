"""transformers' Trainer with Sluice: configurations, and common uses in scripts."""

import importlib.util
import json
import os
import unittest
from unittest import mock

import torch

import sluice
from trainer_case import Rows, TrainerCase, ZERO, logged
from transformers_test import MISSING, make, micro_batches

if not MISSING:
    import transformers
    from transformers import TrainerCallback

    import sluice.transformers as by_sluice


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
        self.assertEqual(params["decayed"], "all")  # DeepSpeed's default
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
            "gradient_accumulation_steps is 2",
            "max_grad_norm",
            "bf16.enabled is True",
            "learning_rate is 0.001",
            "[adam_beta1, adam_beta2]",
            "total_num_steps is 7",
            "warmup_num_steps is 5",
        ):
            self.assertIn(part, sentence)
        self.assertEqual(sentence.count("\n"), 7)
        model(**micro_batches("gpt2", 1)[0]).loss.backward()  # the model is unchanged
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
        # Neither biases nor norms decay, as in the plain Trainer.
        decays = {it["weight_decay"]: it["params"] for it in one.optimizer.param_groups}
        self.assertEqual(sorted(decays), [0.0, 0.1])
        self.assertTrue(all(it.dim() == 1 for it in decays[0.0]))
        with self.assertRaisesRegex(sluice.RefusedError, "cpu_threds"):
            self.trainer(sluice={**run, "run": {"cpu_threds": 1}}).train()
        with self.assertRaisesRegex(sluice.RefusedError, "run.device differs"):
            self.trainer(sluice={**run, "run": {"device": "cuda"}}).train()
        with self.assertRaisesRegex(sluice.RefusedError, "cannot be read"):
            self.trainer(sluice="/nowhere.json")
        with self.assertRaisesRegex(sluice.RefusedError, "needs a configuration"):
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
        self.assertEqual(one.evaluate()["eval_rows"], 5)  # before an engine exists
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
            for _ in range(2):  # the arguments also serve a second Trainer
                one = by_sluice.Trainer(model=make("gpt2"), args=args, train_dataset=Rows("gpt2", 20))
                self.addCleanup(self.end, one)
                one.train()
                self.assertEqual(one.engine.config["zero_optimization"]["stage"], ZERO["stage"])
                self.assertEqual(one.engine.config["train_batch_size"], 6)
                self.end(one)
        args = self.arguments(deepspeed=config)
        with (
            mock.patch.dict(os.environ),  # Accelerate sets a variable for DeepSpeed
            self.assertRaisesRegex(ImportError, "DeepSpeed is not installed"),
        ):
            transformers.Trainer(model=make("gpt2"), args=args, train_dataset=Rows("gpt2", 4))
        with self.assertRaisesRegex(sluice.RefusedError, "remove one"):
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
        with self.assertRaisesRegex(sluice.RefusedError, "not the model's"):
            self.trainer(optimizers=(optimizer, None)).train()
        args = self.arguments()
        with mock.patch.dict(os.environ, {"OMPI_COMM_WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(sluice.RefusedError, "OMPI_COMM_WORLD_SIZE"):
                self.trainer(args=args)


if __name__ == "__main__":
    unittest.main()
