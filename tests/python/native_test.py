"""Native units of the package sluice, which compute modules of transformers: compared with plain
PyTorch's AdamW in fp32, and cases that are left to hooks."""

import itertools
import unittest

import torch

import sluice
import sluice.deepspeed
from native_models import NativeCase, LENGTH, MODELS, VOCAB, batches, by_torch, make, padded, train
from small_modules import DEVICE, PLACES, masters, run_config, twin


def stored(memory, what):
    return sum(
        memory[tier].get(name, 0) for tier in ("host", "nvme") for name in (what, f"{what} in memory")
    )


class Losses(NativeCase):
    def test_as_pytorch(self):
        for name in MODELS:
            for accumulation in (1, 3) if name == "gpt2" else (2,) if name == "tied" else (1,):
                model = make(name)
                reference = twin(model)
                data = batches(20 * accumulation)
                engine = self.engine(model, accumulation)
                self.assertEqual((engine.backend, engine.backend_reason), ("engine", ""))
                losses = train(engine, data)
                self.near(losses, by_torch(reference, data, accumulation), name)

    def test_a_runs_folder_gets_its_tokens_and_times(self):
        model = make("gpt2")
        folder = self.folder / "run"
        with sluice.initialize(model, run_config(), units="auto", run_dir=folder) as engine:
            train(engine, batches(3))
            self.assertEqual(engine.backend, "engine")
        for step in sluice.metrics(folder):
            self.assertGreater(step["tokens_per_s"], 0)
            self.assertGreater(step["forward_ms"], 0)

    def test_weights_as_pytorch(self):
        """The padding row of the embedding gets no gradient from look-ups, even if texts contain
        it."""
        for name in ("gpt2", "tied", "qwen3", "phi3", "gemma3", "qwen3_5"):
            model = make(name)
            model.resize_token_embeddings(VOCAB + 3)  # adds a row for a padding token
            reference = twin(model)
            data = batches(3)
            engine = self.engine(model)
            train(engine, data)
            by_torch(reference, data)
            for key, value in engine.state_dict().items():
                off = (value - reference.state_dict()[key].cpu()).abs().max().item()
                # AdamW's first steps have full size even if a gradient is only rounding error.
                self.assertLess(off, 1e-4, f"{name} {key}")

    def test_padded_rows(self):
        for name, left in (
            ("gpt2", False),
            ("tied", False),
            ("tied", True),
            ("mistral", True),
            ("dynamic", False),
            ("dynamic", True),
            ("longrope", False),
            ("longrope", True),
            ("phi3", True),
            ("gemma3", False),
            ("gemma3", True),
            ("qwen3_5", False),
            ("qwen3_5", True),
        ):
            model = make(name)
            reference = twin(model)
            data = [padded(it, left) for it in batches(6)]
            self.near(train(self.engine(model), data), by_torch(reference, data), (name, left))

    @unittest.skipIf(DEVICE != "cpu", "where the CPU computes, RAM is all that there is besides")
    def test_goes_to_the_drive_where_ram_has_no_room(self):
        length = {"data": {"sequence_length": LENGTH}}
        sizes = {"n_embd": 512, "n_layer": 8}

        def losses(config):
            with sluice.initialize(make("gpt2", **sizes), {**config, **length}) as engine:
                self.assertEqual(engine.backend, "engine")
                memory = {tier: dict(lines) for tier, lines in engine.memory.items()}
                return train(engine, batches(2)), memory, engine.predicted_step_s

        expected, memory, predicted = losses(run_config())
        self.assertIsNone(predicted)
        program = memory["host"]["the program and LibTorch"]
        kept = sum(stored(memory, it) for it in ("parameters", "optimizer state"))
        for background in (False, True):
            config = run_config(run={"checkpoint_background": "on" if background else "off"})
            for part in ("offload_param", "offload_optimizer"):
                config["zero_optimization"][part] = {"device": "auto"}
            room = 250 * 2**20 + background * 12 * 26 * 2**20  # includes a copy of the state
            gib = (program + room) / 2**30
            config["budget"] = {"nvme_paths": [str(self.folder)], "cpu_gib": gib}
            plan = sluice.plan({**config, **length}, model=make("gpt2", **sizes))
            found, memory, predicted = losses(config)
            self.assertEqual(found, expected)
            planned = {
                name: {it: size for it, size in plan.memory[tier]["parts"].items() if size}
                for tier, name in (("nvme", "nvme"), ("cpu", "host"))
            }
            # A busy machine is measured anew for each plan, and how much more than the least is
            # on the drive depends on speeds.
            for tiers in (memory, planned):
                host, nvme = tiers["host"], tiers["nvme"]
                room = gib * 2**30 - sum(
                    host.get(it, 0)
                    for it in ("the program and LibTorch", "checkpoint, copy of the state")
                )
                self.assertGreater(kept, room)  # else the test proves nothing
                self.assertGreater(nvme["optimizer state"], 0)
                on_drive = nvme["optimizer state"] + nvme.get("parameters", 0)
                self.assertGreaterEqual(on_drive, kept - room)
                self.assertLessEqual(sum(host.values()), gib * 2**30)
                self.assertEqual("checkpoint, copy of the state" in host, background)
            for part in ("parameters", "optimizer state", "gradients"):
                size = stored(planned, part)
                self.assertAlmostEqual(size, stored(memory, part), delta=0.01 * size, msg=part)
            for part in ("optimizer state while it is loaded or saved", "the program and LibTorch"):
                size = planned["host"][part]
                self.assertAlmostEqual(size, memory["host"][part], delta=0.1 * size, msg=part)
            self.assertGreater(predicted, 0)

    def test_is_planned_without_values_and_for_another_machine(self):
        card = {
            "gpu_gib": 24, "cpu_gib": 120, "tflops": 140, "bus_gb_per_s": 22, "ram_gb_per_s": 40,
        }  # fmt: skip
        config = run_config(run={"device": "auto"})
        for part in ("offload_param", "offload_optimizer"):
            config["zero_optimization"][part] = {"device": "auto"}
        with torch.device("meta"):
            model = make("llama", hidden_size=1024, intermediate_size=2048)
        native = sluice.plan(config, model=model, machine=card)
        self.assertIn("2048 tokens", native.assumptions[0])
        self.assertIn("llama model with", str(native))
        self.assertIn("all 3 blocks keep", str(native))
        self.assertEqual(native["parameters"], sum(it.numel() for it in model.parameters()))
        kept = []
        for _ in range(2):
            hooks = sluice.plan(config, model=model, machine=card, units="hooks")
            self.assertIn("on the described GPU", str(hooks))
            kept.append(next(it for it in hooks.assumptions if "autograd" in it))
            model.gradient_checkpointing_enable()
        self.assertIn("without checkpointing", kept[0])
        self.assertIn("recomputed in backward", kept[1])
        again = sluice.plan(config, model=model, machine=card)
        self.assertIn("all 3 blocks recompute", str(again))
        self.assertLess(again.memory["gpu"]["bytes"], native.memory["gpu"]["bytes"])
        model.model.layers[1].gradient_checkpointing = False
        some = sluice.plan(config, model=model, machine=card, units="hooks").assumptions[1]
        self.assertIn("with some blocks recomputed", some)
        with torch.device("meta"):
            wordy = make("llama", vocab_size=5_000_000)
        with self.assertRaisesRegex(
            sluice.RefusedError, 'units= .*"model.embed_tokens", "lm_head"'
        ):
            sluice.plan(config, model=wordy, machine={**card, "gpu_gib": 2}, units="hooks")
        of_two = sluice.plan(config, model=model, machine=card, gpus=2)
        self.assertRegex(str(of_two), "2 ranks.*one host")
        self.assertEqual(of_two["tokens_per_step"], 2 * hooks["tokens_per_step"])
        for wrong in ({"gpus": 0}, {"hosts": "2"}, {"gpus": 10**9}, {"machine": {"gpu_gib": "x"}}):
            with self.assertRaises(sluice.RefusedError):
                sluice.plan(config, model=model, **{"machine": card, **wrong})
        with self.assertRaisesRegex(sluice.RefusedError, "not a torch.nn.Module"):
            sluice.plan(config, model="gpt2", machine=card)

    def test_gradient_checkpointing_changes_no_bit(self):
        data = batches(4)
        found = set()
        for checkpoints, more, keeps in (
            (False, {}, True),
            (True, {}, False),
            (False, {"recompute": True}, False),
            (True, {"recompute": False}, True),
        ):
            model = make("llama")
            if checkpoints:
                model.gradient_checkpointing_enable()
            engine = self.engine(model, placement=more)
            self.assertEqual(engine._training.native._keeps(), keeps)
            found.add((*train(engine, data), masters(engine)))
        self.assertEqual(len(found), 1)

    def test_placement_changes_no_bit_and_a_checkpoint_goes_on_anywhere(self):
        data = batches(6)
        for name, bits, accumulation in itertools.product(
            ("gpt2", "llama", "tied", "gemma3", "qwen3_5"), ({}, {"bf16": {"enabled": True}}), (1, 3)
        ):
            found, after = set(), set()
            run = self.folder / f"{name}-{len(bits)}-{accumulation}"
            for place in PLACES:
                engine = self.engine(make(name), accumulation, place, self.folder, **bits)
                first = train(engine, data[:3])
                if place == PLACES[0]:
                    engine.save_checkpoint(run)
                found.add((*first, *train(engine, data[3:]), masters(engine)))
                engine.load_checkpoint(run)
                after.add((*first, *train(engine, data[3:]), masters(engine)))
                engine.close()
            self.assertEqual(found, after, (name, bits, accumulation))
            self.assertEqual(len(found), 1, (name, bits, accumulation))

    def test_scale_of_the_loss(self):
        """The scale comes from num_items_in_batch, or from a script's own use of the loss."""
        batch = {**batches(1)[0], "num_items_in_batch": 7}
        model = make("qwen2")
        reference = twin(model)
        data = [batch] * 3
        self.near(train(self.engine(model), data), by_torch(reference, data))
        model = make("qwen2")
        reference = twin(model)
        engine = self.engine(model)
        engine.backward(engine(**batch).loss * 0.5)
        loss = reference(**batch).loss * 0.5
        loss.backward()
        norm = torch.nn.utils.get_total_norm([it.grad for it in reference.parameters()])
        self.assertAlmostEqual(engine.step().grad_norm, norm.item(), delta=1e-5)

    def test_without_any_label(self):
        engine = self.engine(make("llama"))
        batch = batches(1)[0]
        loss = engine(input_ids=batch["input_ids"], labels=batch["labels"] * 0 - 100).loss
        self.assertTrue(torch.isnan(loss))
        engine.backward(loss)
        self.assertEqual(engine.step().grad_norm, 0)

    def test_dropout_is_the_engines(self):
        data = batches(3)
        dropouts = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}
        found = []
        for checkpoints in (False, True):
            model = make("gpt2", **dropouts)
            reference = twin(model)
            if checkpoints:
                model.gradient_checkpointing_enable()
            engine = self.engine(model)
            with torch.no_grad():
                engine.eval()
                evaluated = engine(**data[0]).loss.item()
                engine.train()
            self.assertAlmostEqual(evaluated, reference.eval()(**data[0]).loss.item(), delta=1e-5)
            found.append(train(engine, data))
            self.assertGreater(abs(found[-1][0] - evaluated), 1e-4)
        self.assertEqual(found[0], found[1])

    def test_16_bits_are_near_those_by_hooks(self):
        found = {}
        for name, units in itertools.product(
            ("llama", "phi3", "gemma3", "qwen3_5"), ("engine", "hooks")
        ):
            engine = self.engine(make(name), units=units, bf16={"enabled": True})
            found[name, units] = train(engine, batches(1) * 8)
        for name, _ in found:
            for own, other in zip(found[name, "engine"], found[name, "hooks"]):
                self.assertAlmostEqual(own, other, delta=0.02, msg=name)

    def test_by_the_modules_own_call_and_by_deepspeeds(self):
        data = batches(4)
        expected = by_torch(make("gpt2"), data)
        model = make("gpt2")
        engine = self.engine(model)
        losses = []
        for batch in data:
            engine.backward(model(batch["input_ids"], labels=batch["labels"])[0])
            losses.append(engine.step().loss)
        self.near(losses, expected)
        engine = sluice.deepspeed.initialize(model=make("gpt2"), config=run_config())[0]
        self.addCleanup(engine.destroy)
        self.assertEqual(engine.engine.backend, "engine")
        for batch, loss in zip(data, expected):
            engine.backward(engine(**batch).loss)
            engine.step()
            self.assertAlmostEqual(engine.engine.last_step.loss, loss, delta=1e-5)


if __name__ == "__main__":
    unittest.main()
