"""What engines made through DeepSpeed's names (sluice.deepspeed) refuse."""

import os
import unittest
from unittest import mock

import torch
from torch.optim import lr_scheduler as schedules

import sluice
import sluice.deepspeed as deepspeed
from deepspeed_scripts import ds_config, initialize, split, without_optimizer
from small_modules import batches, tower, twin


class Refusing(unittest.TestCase):
    def refused(self, sentence, module=None, config=None, **more):
        module = module or tower(blocks=1)
        with self.assertRaisesRegex(sluice.RefusedError, sentence):
            initialize(module, config, **more)
        # The module is unchanged.
        self.assertTrue(all(it.untyped_storage().nbytes() > 0 for it in module.parameters()))

    def test_optimizers(self):
        def of(kind, module, **options):
            return {"module": module, "optimizer": kind(module.parameters(), **options)}

        config = without_optimizer()
        self.refused("torch.optim.sgd.SGD", config=config, **of(torch.optim.SGD, tower(), lr=1))
        self.refused("RMSprop", config=config, **of(torch.optim.RMSprop, tower()))

        class Mine(torch.optim.AdamW):
            pass

        self.refused("Mine", config=config, **of(Mine, tower()))
        self.refused("amsgrad", config=config, **of(torch.optim.AdamW, tower(), amsgrad=True))
        module = tower()
        self.refused(
            "not the model's",
            config=config,
            module=module,
            optimizer=torch.optim.AdamW(twin(module).parameters()),
        )
        self.refused(
            r"blocks\.\d.*not in the optimizer",
            config=config,
            module=module,
            optimizer=torch.optim.AdamW(module.head.parameters()),
        )
        begun = torch.optim.AdamW(module.parameters())
        module(batches(1)[0]).backward()
        begun.step()
        self.refused("has already taken steps|has already advanced", module, config, optimizer=begun)
        groups = split(module)
        groups[0]["betas"] = (0.5, 0.5)
        self.refused("betas", module, config, optimizer=torch.optim.AdamW(groups))
        self.refused("betas", module, model_parameters=groups)
        self.refused("is empty", module, model_parameters=iter(()))

    def test_schedules(self):
        module = tower()
        optimizer = torch.optim.AdamW(module.parameters())
        config = without_optimizer()
        for schedule, sentence in (
            (schedules.StepLR(optimizer, 2), "StepLR"),
            (schedules.ReduceLROnPlateau(optimizer), "ReduceLROnPlateau"),
            (schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)), "LambdaLR of .*lambda"),
            (schedules.LinearLR(optimizer, 0.1), "LinearLR"),
        ):
            self.refused(sentence, module, config, optimizer=optimizer, lr_scheduler=schedule)
        begun = schedules.CosineAnnealingLR(optimizer, 5)
        optimizer.step()
        begun.step()
        self.refused("has already taken steps|has already advanced", module, config, optimizer=optimizer, lr_scheduler=begun)
        other = torch.optim.AdamW(twin(module).parameters())
        self.refused(
            "another optimizer",
            module,
            config,
            optimizer=torch.optim.AdamW(module.parameters()),
            lr_scheduler=schedules.CosineAnnealingLR(other, 5),
        )
        self.refused(
            "without its optimizer", module, lr_scheduler=schedules.CosineAnnealingLR(other, 5)
        )
        both = ds_config(scheduler={"type": "WarmupLR", "params": {}})
        self.refused("remove one", module, both, optimizer=optimizer, lr_scheduler=begun)

    def test_what_initialize_cannot_do(self):
        self.refused("mpu", mpu=object())
        self.refused("mesh_param", mesh_param=(1, 2))
        self.refused("several configurations", config_params=ds_config())
        with self.assertRaisesRegex(sluice.RefusedError, "not a torch.nn.Module"):
            initialize(print)
        with self.assertRaisesRegex(sluice.RefusedError, "needs model"):
            deepspeed.initialize(config=ds_config())
        with self.assertRaisesRegex(sluice.RefusedError, "needs a configuration"):
            deepspeed.initialize(model=tower())
        with self.assertRaisesRegex(sluice.RefusedError, "is not JSON"):
            deepspeed.initialize(model=tower(), config=ds_config(dtype=torch.bfloat16))
        with self.assertRaisesRegex(sluice.RefusedError, "already has an engine"):
            model = tower()
            engine, _, _, _ = initialize(model)
            self.addCleanup(engine.destroy)
            initialize(model)
        with self.assertRaisesRegex(sluice.RefusedError, "cannot be read"):
            deepspeed.initialize(model=tower(), config="/nowhere/ds.json")
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}):
            initialize(tower())[0].destroy()

    def test_names_that_are_not_there(self):
        for name in ("init_inference", "checkpointing"):
            with self.assertRaisesRegex(sluice.RefusedError, name):
                getattr(deepspeed, name)
        self.assertFalse(hasattr(deepspeed, "no_such_thing"))
        engine, optimizer, _, _ = initialize(tower())
        self.assertFalse(hasattr(engine, "no_sync"))
        for name in ("train_batch", "no_sync", "set_train_batch_size"):
            with self.assertRaisesRegex(sluice.RefusedError, name):
                getattr(engine, name)
        with self.assertRaisesRegex(AttributeError, "Tower .*'no_such_thing'"):
            print(engine.no_such_thing)
        self.assertEqual(len(engine.blocks), 4)  # the attribute of the module
        with self.assertRaisesRegex(sluice.RefusedError, "lr.*cannot be set"):
            optimizer.param_groups[0]["lr"] = 1.0
        with self.assertRaisesRegex(sluice.RefusedError, "before the engine"):
            schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        with self.assertRaisesRegex(sluice.RefusedError, "lr_kwargs"):
            engine.step({"lr": 1})
        with self.assertRaisesRegex(sluice.RefusedError, "dtype"):
            engine.half()
        with self.assertRaisesRegex(sluice.RefusedError, "without a backward"):
            engine.step()
        engine.destroy()


if __name__ == "__main__":
    unittest.main()
