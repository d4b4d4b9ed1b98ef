"""DeepSpeed's names (sluice.deepspeed): compared with plain PyTorch, and refusals."""

import argparse
import json
import logging
import tempfile
import unittest
from pathlib import Path

import torch
from torch.optim import lr_scheduler as schedules

import sluice
import sluice.deepspeed as deepspeed
from deepspeed_scripts import (
    ds_config, initialize, split, text_of, train, train_by_torch, without_optimizer,
)
from small_modules import DEVICE, batches, masters, tower, twin


class Training(unittest.TestCase):
    def same(self, got, expected):
        self.assertEqual(len(got), len(expected))
        for one, other in zip(got, expected):
            self.assertAlmostEqual(one, other, delta=1e-5)

    def test_a_scripts_loop(self):
        module = tower()
        reference = twin(module)
        config = ds_config(accumulation=3, gradient_clipping=1e9, steps_per_print=2)
        engine, optimizer, loader, schedule = initialize(module, config)
        self.assertIsNone(loader)
        self.assertIsNone(schedule)
        self.assertIs(engine.module, module)
        self.assertEqual(engine.train_batch_size(), 6)
        self.assertEqual(engine.train_micro_batch_size_per_gpu(), 2)
        self.assertEqual(engine.gradient_accumulation_steps(), 3)
        self.assertEqual((engine.local_rank, engine.global_rank, engine.world_size), (0, 0, 1))
        self.assertEqual(engine.zero_optimization_stage(), 3)
        self.assertIsNone(engine.get_global_grad_norm())
        self.assertTrue(engine.training and not engine.eval().training and engine.train().training)
        data = batches(12)
        with self.assertLogs("sluice", "INFO") as logs:
            got = train(engine, data)
        self.assertEqual(sum("step=" in it for it in logs.output), 2)
        plain = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.1)
        self.same(got, train_by_torch(reference, plain, data, 3))
        norm = torch.stack([it.grad.norm() for it in reference.parameters()]).norm().item()
        self.assertAlmostEqual(engine.get_global_grad_norm(), norm, places=4)
        self.assertEqual(
            (engine.global_steps, engine.micro_steps, engine.skipped_steps), (4, 12, 0)
        )
        self.assertEqual(engine.global_samples, 24)
        self.assertEqual(engine.get_lr(), [1e-2])
        self.assertFalse(optimizer.overflow)
        before = masters(engine.engine)
        optimizer.step()
        optimizer.zero_grad()
        self.assertEqual(masters(engine.engine), before)
        engine.destroy()

    def test_an_optimizer_that_is_handed_in(self):
        for kind, options in (
            (torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-6}),
            (torch.optim.Adam, {"weight_decay": 0.3}),
            (torch.optim.Adam, {"decoupled_weight_decay": True}),
        ):
            module = tower()
            reference = twin(module)
            optimizer = kind(split(module), lr=1e-2, **options)
            plain = kind(split(reference), lr=1e-2, **options)
            engine, facade, _, _ = initialize(module, without_optimizer(), optimizer=optimizer)
            rates = {
                it["lr"]: (len(it["params"]), it["weight_decay"]) for it in facade.param_groups
            }
            self.assertEqual(rates, {1e-2: (9, 0.1), 3e-3: (18, 0)})
            self.same(train(engine, batches(8)), train_by_torch(reference, plain, batches(8)))
            engine.destroy()

    def test_many_groups(self):
        module = tower(blocks=30)
        module.numbers = torch.nn.ParameterList(torch.ones(2) for _ in range(300))
        wanted = {}
        for name, it in module.named_parameters():
            layer = int(name.split(".")[1]) if name.startswith("blocks.") else -1
            decay = 0.1 * (it.dim() > 1 and "numbers" not in name)
            wanted.setdefault((1e-3 * 0.9**layer, decay), []).append(it)
        self.assertEqual(len(wanted), 62)
        groups = [
            {"params": params, "lr": lr, "weight_decay": decay}
            for (lr, decay), params in wanted.items()
        ]
        engine, facade, _, _ = initialize(
            module, without_optimizer(), optimizer=torch.optim.AdamW(groups)
        )
        patterns = [it["match"] for it in engine.config["optimizer"]["groups"]]
        self.assertLess(sum(isinstance(it, str) or len(it) for it in patterns), 256)
        rates = {
            id(it): (group["lr"], group["weight_decay"])
            for group in facade.param_groups
            for it in group["params"]
        }
        for (lr, decay), params in wanted.items():
            for it in params:
                self.assertAlmostEqual(rates[id(it)][0], lr, places=15)
                self.assertEqual(rates[id(it)][1], decay)
        engine.destroy()

    def test_groups_beside_the_configurations_optimizer(self):
        module = tower()
        reference = twin(module)
        engine, facade, _, _ = initialize(module, model_parameters=split(module))
        plain = torch.optim.AdamW(split(reference), lr=1e-2)
        self.same(train(engine, batches(8)), train_by_torch(reference, plain, batches(8)))
        self.assertEqual(sorted(it["lr"] for it in facade.param_groups), [3e-3, 1e-2])
        engine.destroy()
        engine, _, _, _ = initialize(
            module := tower(), model_parameters=filter(lambda it: True, module.parameters())
        )
        engine.destroy()

    def test_schedules_have_the_rates_of_those_they_are_made_from(self):
        steps = 12
        for name, make in {
            "cosine": lambda it: schedules.CosineAnnealingLR(it, steps),
            "polynomial": lambda it: schedules.PolynomialLR(it, total_iters=8, power=2.0),
            "linear": lambda it: schedules.LinearLR(it, 1.0, 0.0, total_iters=9),
        }.items():
            module = tower(blocks=1)
            reference = twin(module)
            optimizer = torch.optim.AdamW(split(module), lr=1e-2)
            plain = torch.optim.AdamW(split(reference), lr=1e-2)
            expected = make(plain)
            engine, facade, _, schedule = initialize(
                module,
                without_optimizer(),
                optimizer=optimizer,
                lr_scheduler=make(optimizer) if name != "linear" else make,
            )
            for step in range(steps):
                got = sorted(it["lr"] for it in facade.param_groups)
                for one, other in zip(got, sorted(expected.get_last_lr())):
                    self.assertAlmostEqual(one, other, places=12, msg=f"{name}, step {step}")
                self.assertEqual(sorted(schedule.get_last_lr()), got)
                self.same(
                    train(engine, batches(1, seed=step)),
                    train_by_torch(reference, plain, batches(1, seed=step), 1, expected),
                )
                schedule.step()
            self.assertEqual(schedule.state_dict(), {"last_batch_iteration": steps})
            engine.destroy()

    def test_a_step_that_ends_early(self):
        module = tower()
        reference = twin(module)
        engine, _, _, _ = initialize(module, ds_config(accumulation=3))
        data = batches(2)
        for tokens in data:
            engine.set_gradient_accumulation_boundary(tokens is data[-1])
            self.assertEqual(engine.is_gradient_accumulation_boundary(), tokens is data[-1])
            loss = engine(tokens)
            self.assertIs(engine.backward(loss), loss)
            engine.step()
        self.assertEqual(engine.global_steps, 1)
        plain = torch.optim.AdamW(reference.parameters(), lr=1e-2, weight_decay=0.1)
        for tokens in data:
            (reference(tokens) / 3).backward()
        plain.step()
        for name, value in engine.state_dict().items():
            expected = reference.state_dict()[name].cpu()
            self.assertTrue(torch.allclose(value.cpu(), expected, atol=1e-6), name)
        engine.set_gradient_accumulation_boundary(False)
        for number in range(3):
            engine.backward(engine(data[0]), scale_wrt_gas=False)
            if number < 2:
                engine.step()
        with self.assertRaisesRegex(sluice.RefusedError, "raise gradient_accumulation_steps"):
            engine.step()
        engine.destroy()

    def test_a_step_whose_gradient_overflows(self):
        engine, optimizer, _, schedule = initialize(
            tower(),
            ds_config(
                fp16={"enabled": True, "initial_scale_power": 40, "hysteresis": 1},
                scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
            ),
        )
        before = masters(engine.engine)
        train(engine, batches(1))
        self.assertTrue(optimizer.overflow and not engine.was_step_applied())
        self.assertEqual((engine.global_steps, engine.skipped_steps), (1, 1))
        self.assertEqual((optimizer.cur_scale, schedule.last_epoch), (2.0**39, 0))
        self.assertEqual(masters(engine.engine), before)
        engine.destroy()

    @unittest.skipIf(DEVICE == "cuda", "torch's samplers draw on the CPU")
    def test_training_data_and_arguments(self):
        parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ds.json"
            path.write_text(
                f"{json.dumps(ds_config(wandb={'project': '# no // comment'}))[:-1]}, /* \n */ }}"
            )
            args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(path)])
            deepspeed.init_distributed("nccl")
            data = list(torch.cat(batches(5)))
            with deepspeed.zero.Init(config_dict_or_path=str(path), dtype=torch.bfloat16):
                self.assertEqual(torch.nn.Linear(2, 2).weight.dtype, torch.bfloat16)
            self.assertEqual(torch.nn.Linear(2, 2).weight.dtype, torch.float32)
            engine, _, loader, _ = deepspeed.initialize(args, tower(), training_data=data)
            self.assertTrue(args.deepspeed)
            self.assertEqual([it.shape[0] for it in loader], [2] * 5)
            self.assertEqual(len(train(engine, loader)), 5)
            engine.destroy()


class Configurations(unittest.TestCase):
    """Hand-written files, through every entry point: all use the parser of `sluice`."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "ds.json"

    def engines(self, text):
        """Engines from a file, and from a dict if the text is JSON; by both calls."""
        self.path.write_bytes(text if isinstance(text, bytes) else text.encode())
        configs = [self.path, str(self.path)]
        try:
            configs.append(json.loads(text))
        except (ValueError, RecursionError):
            pass  # not a dict
        for config in configs:
            yield lambda it=config: sluice.initialize(tower(blocks=1), it)
            yield lambda it=config: initialize(tower(blocks=1), it)[0].engine

    def test_what_is_misspelled_or_given_twice_is_refused(self):
        twice = text_of()[:-1] + ', "bf16": {"enabled": true}, "bf16": {"enabled": false}}'
        for text, sentence in (
            (text_of(zero_optimisation={"stage": 3}), "did you mean zero_optimization"),
            (text_of(optimizer={"params": {"learning_rate": 1}}), "optimizer.params.lr"),
            (text_of(foo=1), "foo is not a key"),
            ('{"a": ' + "[" * 500 + "]" * 500 + "}", "nested deeper|is not a key"),
            ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper"),
            ("[1]", "is not a JSON object|is a list"),
            ("{\n,", "ds.json:2:1"),
        ):
            for make in self.engines(text):
                with self.assertRaisesRegex(sluice.RefusedError, sentence):
                    make()
        self.path.write_text(twice)
        for config in (self.path, str(self.path)):
            with self.assertRaisesRegex(sluice.RefusedError, "bf16 is given twice"):
                sluice.initialize(tower(blocks=1), config)
        loop = ds_config()
        loop["x"] = loop
        with self.assertRaisesRegex(sluice.RefusedError, "is not JSON"):
            sluice.initialize(tower(blocks=1), loop)

    def test_what_deepspeed_reads_is_read(self):
        relaxed = text_of()[:-1] + ", bf16: {enabled: True,}, # why\n _comment: \"x\", fp16: null}"
        for text in (relaxed, b"\xef\xbb\xbf" + relaxed.encode()):
            for make in self.engines(text):
                with make() as engine:
                    self.assertTrue(engine.config["bf16"]["enabled"])
        nothing = text_of(optimizer=None, scheduler=None, fp16=None)
        for make in self.engines(nothing):
            with make() as engine:
                self.assertEqual(engine.config["optimizer"]["type"], "AdamW")
        for name in ("FusedAdam", "DeepSpeedCPUAdam"):
            for make in self.engines(text_of(optimizer={"type": name, "params": {"lr": 0.5}})):
                with make() as engine:
                    self.assertEqual(engine.config["optimizer"]["type"], "Adam")
        for make in self.engines(text_of(zero_optimization={"stage": 3, "sub_group_size": 0})):
            with make() as engine:
                train(deepspeed.DeepSpeedEngine(engine, None, None), batches(1))

    def test_what_has_no_effect_is_named_once(self):
        config = ds_config(
            pipeline={"stages": 3},
            scheduler={
                "type": "WarmupDecayLR",
                "params": {"warmup_num_steps": 9, "total_num_steps": 4, "min_lr": 0},
            },
        )
        with self.assertLogs("sluice", "WARNING") as said:
            sluice.initialize(tower(blocks=1), config).close()
        self.assertRegex(said.output[0], "pipeline, scheduler.params.min_lr")
        self.assertRegex(said.output[1], "total_num_steps 4 .*warmup_num_steps 9")
        self.assertEqual(len(said.output), 2)
        with self.assertNoLogs("sluice", "WARNING"):
            sluice.initialize(tower(blocks=1), config).close()

    def test_a_module_of_another_type_is_said(self):
        module = tower(blocks=1)
        module.norm.to(torch.bfloat16)
        with self.assertLogs("sluice", "WARNING") as said:
            sluice.initialize(module, ds_config()).close()
        self.assertRegex(said.output[0], "bfloat16 and float32, .*in float32")
        with self.assertLogs("sluice", "WARNING") as said:
            logging.getLogger("sluice").warning("some processors are told to be slow in 16 bits")
            sluice.initialize(tower(blocks=1), ds_config(bf16={"enabled": True})).close()
        self.assertNotIn("are trained", "".join(said.output))


if __name__ == "__main__":
    unittest.main()
