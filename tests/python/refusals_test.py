"""What the package refuses, and its messages."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from torch import nn

import sluice
from small_modules import (
    DEVICE,
    Tower,
    batches,
    initialize,
    masters,
    run_config,
    tower,
    train,
)


class Refusals(unittest.TestCase):
    def refused(self, sentence, work, error=sluice.RefusedError):
        with self.assertRaisesRegex(error, sentence):
            work()

    def test_of_modules(self):
        config = run_config()
        self.refused("not a torch.nn.Module", lambda: sluice.initialize([1], config))
        self.refused("torch.compile", lambda: sluice.initialize(torch.compile(tower()), config))
        self.refused("DataParallel", lambda: sluice.initialize(nn.DataParallel(tower()), config))
        compiled = tower()
        compiled.blocks[1].compile(backend="eager")
        self.refused(
            r"blocks\.1 .*Module\.compile",
            lambda: sluice.initialize(compiled, config),
        )
        self.refused(
            "nothing to train", lambda: sluice.initialize(tower().requires_grad_(False), config)
        )
        self.refused("nothing to train", lambda: sluice.initialize(nn.ReLU(), config))
        with torch.device("meta"):
            meta = Tower()
        self.refused("meta device", lambda: sluice.initialize(meta, config))
        self.refused(
            "embedding.weight is torch.complex64",
            lambda: sluice.initialize(tower().to(torch.complex64), config),
        )
        self.refused(
            'units="all" is not valid',
            lambda: sluice.initialize(tower(), config, units="all"),
        )
        self.refused(
            "matches no module", lambda: sluice.initialize(tower(), config, units=["layers.*"])
        )
        for units in ([["blocks.0"]], [{"blocks.*"}], {"blocks.*": 1}, 3, [lambda it: it]):
            self.refused(
                "units=.* is not valid",
                lambda it=units: sluice.initialize(tower(), config, units=it),
            )
        module = tower()
        with sluice.initialize(module, config):
            self.refused("already has an engine", lambda: sluice.initialize(module, config))

    def test_of_configurations(self):
        self.refused("No such file", lambda: sluice.initialize(tower(), "/nowhere/run.json"))
        for config, kind in ((None, "NoneType"), ([1], "list"), (b"run.json", "bytes")):
            self.refused(
                f"configuration is a {kind}",
                lambda config=config: sluice.initialize(tower(), config),
            )
        self.refused(
            "cpu_threds", lambda: sluice.initialize(tower(), run_config(run={"cpu_threds": 2}))
        )
        self.refused(
            "nvme_path",
            lambda: sluice.initialize(
                tower(), {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}
            ),
        )
        if not torch.cuda.is_available():
            self.refused(
                "run.device is",
                lambda: sluice.initialize(tower(), run_config(run={"device": "cuda"})),
            )
        self.refused(
            "recipe.lora",
            lambda: sluice.initialize(tower(), run_config(recipe={"lora": {"rank": 4}})),
        )
        self.refused(
            "matches no parameter",
            lambda: sluice.initialize(
                tower(),
                run_config(
                    optimizer={"params": {"lr": 0.1}, "groups": [{"match": "layers.*", "lr": 0.1}]}
                ),
            ),
        )
        self.refused(
            r"Raise budget\.cpu_gib",
            lambda: sluice.initialize(tower(), run_config(budget={"cpu_gib": 0.1})),
            sluice.Error,
        )
        with self.assertLogs("sluice", "INFO") as logs:
            sluice.initialize(tower(), run_config(run={"eval_every": 7})).close()
        self.assertIn("run.eval_every is ignored", " ".join(logs.output))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ds.json"
            path.write_text(
                '{"train_micro_batch_size_per_gpu": 2, // as DeepSpeed reads it\n "comet":'
                ' {"enabled": true}}'
            )
            with (
                self.assertLogs("sluice", "INFO") as logs,
                sluice.initialize(tower(), path) as engine,
            ):
                self.assertEqual(engine.micro_batches, 1)
            self.assertIn("comet", " ".join(logs.output))

    def test_of_what_is_done_to_a_module_in_training(self):
        module = tower()
        x = batches(1)[0]
        with initialize(module) as engine:
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                self.refused("autocast", lambda: engine(x))
            self.refused("without a backward", engine.step)
            self.refused("takes the loss", lambda: engine.backward(torch.ones(2)))
            with torch.no_grad():
                loss = engine(x)
            self.refused("require a gradient", lambda: engine.backward(loss))
            loss = engine(x)
            self.refused("outside engine.backward", loss.backward)
            self.refused("load_weights", lambda: module.load_state_dict(tower().state_dict()))
            self.refused(
                r"weights lack blocks\.1\.up\.weight",
                lambda: engine.load_weights(
                    {
                        name: value
                        for name, value in tower().state_dict().items()
                        if name != "blocks.1.up.weight"
                    }
                ),
            )
            module.blocks[0].extra = nn.Parameter(torch.ones(3))
            engine.backward(engine(x))
            self.refused(r"blocks\.0\.extra was added after", engine.step)
            del module.blocks[0].extra
            module.blocks[0].up.weight.requires_grad_(False)
            engine.backward(engine(x))
            self.refused(r"requires_grad of blocks\.0\.up\.weight", engine.step)
            module.blocks[0].up.weight.requires_grad_(True)
            self.assertEqual(len(train(engine, batches(2))), 2)
            module.blocks[0].compile(backend="eager")
            self.refused("Module.compile", lambda: engine(x))

    def test_of_changes_in_place(self):
        class Clamped(Tower):
            def hidden(self, tokens):
                x = self.embedding(tokens)
                for block in self.blocks:
                    x = block(x)
                return self.norm(x)

        torch.manual_seed(0)
        module = Clamped()

        def clamp(block, args):
            with torch.no_grad():
                block.up.weight.clamp_(-0.1, 0.1)

        with initialize(module) as engine:
            module.blocks[1].register_forward_pre_hook(clamp)
            self.refused(r"blocks\.1\.up\.weight .*in place", lambda: engine(batches(1)[0]))

    def test_of_parameters_that_are_given_other_memory(self):
        """An EMA that is swapped in by .data must not train on with two models."""
        data = batches(4)
        with initialize(tower()) as engine:
            train(engine, data)
            expected = masters(engine)
        for swap in ("one", "vector"):
            module = tower()
            with initialize(module) as engine, tempfile.TemporaryDirectory() as folder:
                train(engine, data[:2])
                values = engine.state_dict()
                before = [it.data for it in module.parameters()]
                if swap == "one":
                    weight = module.blocks[2].down.weight
                    weight.data = values["blocks.2.down.weight"] * 0.9
                else:
                    kept = [values[name].flatten() for name, _ in module.named_parameters()]
                    nn.utils.vector_to_parameters(torch.cat(kept) * 0.9, module.parameters())
                pattern = r"parameter \S+ no longer uses the engine.s memory.*load_weights\(\)"
                for call in (
                    lambda: engine(data[2]),
                    lambda: module(data[2]),
                    engine.state_dict,
                    lambda: engine.save_checkpoint(folder),
                    lambda: engine.save_weights(f"{folder}/weights.safetensors"),
                ):
                    self.refused(pattern, call)
                    with torch.no_grad():
                        self.refused(pattern, call)
                self.assertEqual(os.listdir(folder), [])
                for it, own in zip(module.parameters(), before):
                    it.data = own
                engine.backward(engine(data[2]))
                module.head.weight.data = values["head.weight"]
                self.refused(pattern, engine.step)
                module.head.weight.data = before[0]
                train(engine, data[2:])
                self.assertEqual(masters(engine), expected)

    def test_of_parameters_that_are_attached_again(self):
        data = batches(3)
        module = tower()
        with initialize(module) as engine, tempfile.TemporaryDirectory() as folder:
            train(engine, data[:1])
            path = engine.save_checkpoint(folder)
            expected = train(engine, data[1:])
            for it in module.parameters():
                it.data = torch.zeros(it.shape)
            engine.load_checkpoint(path)
            self.assertEqual(train(engine, data[1:]), expected)
            other = tower(seed=4)
            for it, own in zip(module.parameters(), other.parameters()):
                it.data = own.data.clone()
            engine.load_weights(dict(module.named_parameters()))
            with torch.no_grad():
                self.assertEqual(engine(data[0]).item(), other(data[0]).item())

    def test_of_clipping_by_the_script(self):
        module = tower()
        with initialize(module) as engine:
            with self.assertLogs("sluice", "WARNING") as logs:
                for _ in range(2):
                    engine.backward(engine(batches(1)[0]))
                    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                    engine.step()
            self.assertRegex("".join(logs.output), 'has no effect.*"gradient_clipping"')
            self.assertEqual(len(logs.output), 1)
        other = tower()
        other(batches(1)[0]).backward()
        with self.assertNoLogs("sluice", "WARNING"):
            self.assertGreater(nn.utils.clip_grad_norm_(other.parameters(), 1e-3), 1e-3)
        norms = [it.grad.norm() for it in other.parameters()]
        self.assertLess(torch.stack(norms).norm(), 1.01e-3)

    def test_of_another_torch(self):
        code = "import torch; torch.__version__ = '2.12.1+cpu'; import sluice"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ,
            check=False,
        )
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(
            done.stderr.splitlines()[-1],
            r"ImportError: .* 2\.11\.0\S*, .* 2\.12\.1\+cpu ",
        )


if __name__ == "__main__":
    unittest.main()
