"""The fast way of the package sluice, in which the engine's own units compute a module of
transformers: beside plain PyTorch's AdamW in fp32, and what is left to hooks."""

import contextlib
import itertools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

import torch

import sluice
import sluice.deepspeed
from small_modules import DEVICE, PLACES, masters, run_config, torch_adamw, tower, twin
from transformers_test import LLAMA, MISSING, VOCAB

if MISSING is None:
    import transformers

LENGTH = 12
GPT2 = {
    "vocab_size": VOCAB,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
MODELS = {
    "gpt2": ("GPT2", GPT2, {}),
    "llama": ("Llama", LLAMA, {}),
    "tied": ("Llama", LLAMA, {"tie_word_embeddings": True, "pad_token_id": 5}),
    "qwen2": ("Qwen2", LLAMA, {}),
    "qwen3": ("Qwen3", LLAMA, {"head_dim": 16}),
    "mistral": ("Mistral", LLAMA, {"sliding_window": 5}),
    "dynamic": (
        "Llama",
        LLAMA,
        {
            "max_position_embeddings": 5,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0},
        },
    ),
}


def make(name, seed=0, **more):
    family, numbers, own = MODELS[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{family}Config")(**{**numbers, **own, **more})
    kind = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    return getattr(transformers, family + kind)(config).train()


def batches(count, seed=1, rows=2):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    all_ids = [torch.randint(0, VOCAB, (rows, LENGTH), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": ids.clone()} for ids in all_ids]


def padded(batch, left, labels=True):
    """Three tokens of the second row are padding. What is behind padding is no label: a hidden
    token would foretell it."""
    mask = torch.ones_like(batch["input_ids"])
    hidden = slice(0, 3) if left else slice(LENGTH - 3, LENGTH)
    mask[1, hidden] = 0
    ids = batch["input_ids"].masked_fill(mask == 0, 5)
    unsaid = mask.roll(1, dims=1) * mask == 0 if left else mask == 0
    labels = ids.masked_fill(unsaid, -100) if labels else ids
    return {"input_ids": ids, "labels": labels, "attention_mask": mask}


def train(engine, data):
    losses = []
    for batch in data:
        engine.backward(engine(**batch).loss)
        done = engine.step()
        if done is not None:
            losses.append(done.loss)
    return losses


def by_torch(model, data, accumulation=1):
    optimizer = torch_adamw(model)
    losses = []
    for first in range(0, len(data), accumulation):
        optimizer.zero_grad()
        total = 0.0
        for batch in data[first : first + accumulation]:
            loss = model(**batch).loss / accumulation
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return losses


@unittest.skipIf(MISSING, MISSING)
class Fast(unittest.TestCase):
    def setUp(self):
        transformers.logging.set_verbosity_error()
        warnings.simplefilter("ignore")
        logging.getLogger("sluice").setLevel(logging.ERROR)
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def engine(self, model, *args, units="engine", **options):
        engine = sluice.initialize(model, run_config(*args, **options), units=units)
        self.addCleanup(engine.close)
        return engine

    def near(self, losses, expected, msg=None):
        self.assertEqual(len(losses), len(expected))
        for step, (own, other) in enumerate(zip(losses, expected)):
            self.assertAlmostEqual(own, other, delta=1e-5, msg=f"{msg}, step {step}")


class Losses(Fast):
    def test_as_pytorch(self):
        for name in MODELS:
            for accumulation in (1, 3) if name == "gpt2" else (2,) if name == "tied" else (1,):
                model = make(name)
                reference = twin(model)
                data = batches(20 * accumulation)
                engine = self.engine(model, accumulation)
                self.assertEqual((engine.way, engine.way_reason), ("engine", ""))
                losses = train(engine, data)
                self.near(losses, by_torch(reference, data, accumulation), name)

    def test_a_runs_folder_gets_its_tokens_and_times(self):
        model = make("gpt2")
        folder = self.folder / "run"
        with sluice.initialize(model, run_config(), units="auto", run_dir=folder) as engine:
            train(engine, batches(3))
            self.assertEqual(engine.way, "engine")
        for step in sluice.metrics(folder):
            self.assertGreater(step["tokens_per_s"], 0)
            self.assertGreater(step["forward_ms"], 0)

    def test_weights_as_pytorch(self):
        """Padding's row of the embedding has no gradient for being looked up, in texts either."""
        for name in ("gpt2", "tied", "qwen3"):
            model = make(name)
            model.resize_token_embeddings(VOCAB + 3)  # as for a token of padding
            reference = twin(model)
            data = batches(3)
            engine = self.engine(model)
            train(engine, data)
            by_torch(reference, data)
            for key, value in engine.state_dict().items():
                off = (value - reference.state_dict()[key]).abs().max().item()
                # AdamW's first steps are as large where a gradient is rounding alone.
                self.assertLess(off, 1e-4, f"{name} {key}")

    def test_padded_rows(self):
        for name, left in (
            ("gpt2", False),
            ("tied", False),
            ("tied", True),
            ("mistral", True),
            ("dynamic", False),
            ("dynamic", True),
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
                self.assertEqual(engine.way, "engine")
                memory = {tier: dict(lines) for tier, lines in engine.memory.items()}
                return train(engine, batches(2)), memory, engine.predicted_step_s

        expected, memory, predicted = losses(run_config())
        self.assertIsNone(predicted)
        program = memory["host"]["the program and LibTorch"]
        for background in (False, True):
            config = run_config(run={"checkpoint_background": "on" if background else "off"})
            for part in ("offload_param", "offload_optimizer"):
                config["zero_optimization"][part] = {"device": "auto"}
            room = 250 * 2**20 + background * 12 * 26 * 2**20  # with a copy of the state
            gib = (program + room) / 2**30
            config["budget"] = {"nvme_paths": [str(self.folder)], "cpu_gib": gib}
            plan = sluice.plan({**config, **length}, model=make("gpt2", **sizes))
            found, memory, predicted = losses(config)
            self.assertEqual(found, expected)
            self.assertGreater(memory["nvme"]["optimizer state"], 50 * 2**20)
            self.assertLess(sum(memory["host"].values()), gib * 2**30)
            for tier, name in (("nvme", "nvme"), ("cpu", "host")):
                parts = {it: size for it, size in plan.memory[tier]["parts"].items() if size}
                self.assertEqual(parts, memory[name])
            self.assertAlmostEqual(predicted, plan.step_s)

    def test_is_planned_without_values_and_for_another_machine(self):
        card = {
            "gpu_gib": 24, "cpu_gib": 120, "tflops": 140, "bus_gb_per_s": 22, "ram_gb_per_s": 40,
        }  # fmt: skip
        config = run_config(run={"device": "auto"})
        for part in ("offload_param", "offload_optimizer"):
            config["zero_optimization"][part] = {"device": "auto"}
        with torch.device("meta"):
            model = make("llama", hidden_size=1024, intermediate_size=2048)
        fast = sluice.plan(config, model=model, machine=card)
        self.assertIn("rows are taken to have 2048 tokens", fast.assumptions[0])
        self.assertIn("llama model of", str(fast))
        self.assertIn("all 3 blocks keep theirs", str(fast))
        self.assertEqual(fast["parameters"], sum(it.numel() for it in model.parameters()))
        kept = []
        for _ in range(2):
            hooks = sluice.plan(config, model=model, machine=card, units="hooks")
            self.assertIn("on a GPU as described", str(hooks))
            kept.append(next(it for it in hooks.assumptions if "autograd" in it))
            model.gradient_checkpointing_enable()
        self.assertIn("without checkpointing", kept[0])
        self.assertIn("whose blocks are computed again in backward", kept[1])
        again = sluice.plan(config, model=model, machine=card)
        self.assertIn("those of all 3 blocks are recomputed", str(again))
        self.assertLess(again.memory["gpu"]["bytes"], fast.memory["gpu"]["bytes"])
        model.model.layers[1].gradient_checkpointing = False
        some = sluice.plan(config, model=model, machine=card, units="hooks").assumptions[1]
        self.assertIn("some of whose blocks", some)
        with torch.device("meta"):
            wordy = make("llama", vocab_size=5_000_000)
        with self.assertRaisesRegex(
            sluice.RefusedError, r'units= may name parts .*"model.embed_tokens", "lm_head"'
        ):
            sluice.plan(config, model=wordy, machine={**card, "gpu_gib": 2}, units="hooks")
        of_two = sluice.plan(config, model=model, machine=card, gpus=2)
        self.assertIn("2 ranks, all on one host", str(of_two))
        self.assertEqual(of_two["tokens_per_step"], 2 * hooks["tokens_per_step"])
        for wrong in ({"gpus": 0}, {"hosts": "2"}, {"gpus": 10**9}, {"machine": {"gpu_gib": "x"}}):
            with self.assertRaises(sluice.RefusedError):
                sluice.plan(config, model=model, **{"machine": card, **wrong})
        with self.assertRaisesRegex(sluice.RefusedError, "no torch.nn.Module"):
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
            ("gpt2", "llama", "tied"), ({}, {"bf16": {"enabled": True}}), (1, 3)
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
        """By num_items_in_batch, and where a script computes with the loss."""
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
        for units in ("engine", "hooks"):
            engine = self.engine(make("llama"), units=units, bf16={"enabled": True})
            found[units] = train(engine, batches(1) * 8)
        for own, other in zip(found["engine"], found["hooks"]):
            self.assertAlmostEqual(own, other, delta=0.02)

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
        self.assertEqual(engine.engine.way, "engine")
        for batch, loss in zip(data, expected):
            engine.backward(engine(**batch).loss)
            engine.step()
            self.assertAlmostEqual(engine.engine.last_step.loss, loss, delta=1e-5)


class Outputs(Fast):
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
        self.assertEqual(engine.way, "engine")
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

    def test_closed_and_loaded(self):
        model = make("llama")
        weights = make("llama", seed=5).state_dict()
        engine = self.engine(model)
        train(engine, batches(2))
        engine.load_weights(weights)
        self.assertEqual(engine.global_step, 0)
        for key, value in engine.state_dict().items():
            self.assertTrue(torch.equal(value, weights[key]), key)
        engine.close()
        self.assertNotIn("forward", model.__dict__)


class Checkpoints(Fast):
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


class Failures(Fast):
    def test_leave_the_engine_usable(self):
        for accumulation, place in ((1, "cpu"), (2, "nvme")):
            data = batches(2 * accumulation)
            engine = self.engine(make("mistral"), accumulation, place, self.folder)
            fast = engine._training.native
            with self.assertRaisesRegex(IndexError, "outside of the vocabulary"):
                engine(input_ids=data[0]["input_ids"] + VOCAB, labels=data[0]["labels"])
            if DEVICE == "cpu":  # within the units; a GPU computes nothing after such an index
                with self.broken_checks(), self.assertRaises(IndexError):
                    engine(input_ids=data[0]["input_ids"] + VOCAB, labels=data[0]["labels"])
            loss = engine(**data[0]).loss
            engine.backward(loss)
            with self.assertRaisesRegex(sluice.RefusedError, "has been"):
                engine.backward(loss)
            with self.caught_documents() as caught:
                loss = engine(**padded(data[0], left=True)).loss
            caught[0][0].resize_(0)  # a block's backward fails with its sums open
            with self.assertRaises(IndexError):
                engine.backward(loss)
            self.assertIs(engine._training.native, fast)
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
import fast_test, sluice, torch
from small_modules import run_config
sluice._micro_batch._check_facts = lambda *_: None
data = fast_test.batches(1)[0]
with sluice.initialize(fast_test.make("mistral"), run_config(), units="engine") as engine:
    try:
        engine.backward(engine(input_ids=data["input_ids"] + fast_test.VOCAB, labels=data["labels"]).loss)
    except RuntimeError as error:
        print("raised:", error)
print("closed")
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertIn("raised: CUDA error: device-side assert", done.stdout)
        self.assertIn("closed", done.stdout)

    def test_a_stale_loss(self):
        engine = self.engine(make("gpt2"))
        batch = batches(1)[0]
        stale = engine(**batch).loss
        train(engine, [batch])
        for loss in (stale, stale * 2):
            with self.assertRaisesRegex(sluice.RefusedError, "before the parameters changed"):
                engine.backward(loss)
        with self.assertRaisesRegex(sluice.RefusedError, r"outside of engine.backward"):
            engine(**batch).loss.backward()
        train(engine, [batch])

    def test_a_loss_of_ones_own_in_eval_mode(self):
        engine = sluice.initialize(make("gpt2").eval(), run_config())  # as from_pretrained() does
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
        with self.assertRaisesRegex(sluice.RefusedError, 'no input_ids and labels.*"hooks"'):
            engine(input_ids=batch["input_ids"])
        engine.eval()
        logits = engine(input_ids=batch["input_ids"]).logits
        with self.assertRaisesRegex(sluice.RefusedError, "not computed by calling the engine"):
            engine.backward(logits.square().mean())
        self.assertEqual(len(train(engine, [batch])), 1)


class ByHooks(Fast):
    """What "auto" leaves to PyTorch, and "engine" refuses."""

    def reason(self, model, pattern):
        with self.assertRaisesRegex(sluice.RefusedError, f'units="engine".*{pattern}'):
            sluice.initialize(model, run_config(), units="engine")
        engine = self.engine(model, units="auto")
        self.assertEqual(engine.way, "hooks")
        self.assertRegex(engine.way_reason, pattern)
        return engine

    def test_other_modules(self):
        self.reason(tower(), "Tower is none of the classes")

        class Own(transformers.LlamaForCausalLM):
            pass

        self.reason(Own(transformers.LlamaConfig(**LLAMA)), "Own is none of the classes")
        hooked = make("llama")
        hooked.model.layers[1].mlp.register_forward_hook(lambda *_: None)
        self.reason(hooked, "layers.1.mlp has hooks")
        patched = make("gpt2")
        patched.transformer.h[0].forward = patched.transformer.h[0].forward
        self.reason(patched, "forward of transformer.h.0 was replaced")
        frozen = make("gpt2")
        frozen.transformer.wpe.weight.requires_grad_(False)
        self.reason(frozen, "wpe.weight is frozen")
        try:
            import peft
        except ImportError:
            return
        recipe = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
        self.reason(peft.get_peft_model(make("llama"), recipe), "PeftModelForCausalLM")

    @unittest.skipIf(DEVICE != "cpu", "where the CPU computes, sums take more RAM by hooks")
    def test_a_run_that_has_no_room_for_hooks_goes_on_by_the_units(self):
        sizes = {"n_embd": 256, "n_layer": 6}
        data = batches(4)
        half = run_config(bf16={"enabled": True})
        with sluice.initialize(make("gpt2", **sizes), half) as engine:
            expected, room = train(engine, data), sum(dict(engine.memory["host"]).values())
            words = engine.module.generate(data[0]["input_ids"], max_new_tokens=3)
        tight = {**half, "budget": {"cpu_gib": (room + 2**20) / 2**30}}
        folder = self.folder / "run"
        model = make("gpt2", **sizes)
        with sluice.initialize(model, tight, units="auto", run_dir=folder) as engine:
            losses = train(engine, data[:1])
            moved = {**data[1], "position_ids": torch.arange(LENGTH)[None] + 3}
            for sentence in ("position_ids.* Nor can it go on by hooks: .*cpu_gib", "position_ids"):
                with self.assertRaisesRegex(sluice.RefusedError, sentence):
                    engine(**moved)
                self.assertEqual(engine.way, "engine")
            losses += train(engine, data[1:3])
            loss = engine(**data[3]).loss * 2 + engine(**data[3]).loss
            with self.assertRaisesRegex(sluice.RefusedError, "several calls"):
                engine.backward(loss)
            losses += train(engine, data[3:])
            self.assertEqual(losses, expected)
            again = engine.module.generate(data[0]["input_ids"], max_new_tokens=3)
            self.assertEqual(again.tolist(), words.tolist())
        self.assertEqual([it["step"] for it in sluice.metrics(folder)], [1, 2, 3, 4])
        self.assertEqual(list(self.folder.glob("sluice-to-hooks-*")), [])

    def test_numbers_that_no_family_has(self):
        model = make("llama")
        model.model.layers[2].post_attention_layernorm.variance_epsilon = 0.1
        self.reason(model, "variance_epsilon of model.layers.2.post_attention_layernorm is 0.1")
        model = make("llama")
        model.model.rotary_emb.inv_freq *= 2
        self.reason(model, "logits of a few tokens differ")
        model = make("gpt2")
        model.config.soft_cap = 30.0
        self.reason(model, "soft_cap=30.0")
        self.reason(make("llama", hidden_act="gelu"), "hidden_act")
        self.reason(make("gpt2", resid_pdrop=0.1), "dropouts differ")

    def test_not_another_attention(self):
        model = make("llama", attn_implementation="flex_attention")
        self.assertEqual(self.engine(model).way, "engine")
        self.assertEqual(model.config._attn_implementation, "flex_attention")

    def test_the_numbers_are_the_same(self):
        data = batches(3)
        model = make("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model.transformer.h[1].register_forward_hook(lambda *_: None)
        expected = by_torch(make("gpt2"), data)
        self.near(train(self.engine(model, units="auto"), data), expected)

    def test_calls_that_units_do_not_compute(self):
        """An engine in its course goes on by hooks, with its moments."""
        data = batches(8)
        naive = [padded(it, left=False, labels=False) for it in data]
        left = [padded(it, left=True) for it in data]
        moved = [{**it, "position_ids": torch.arange(LENGTH)[None] + 3} for it in data]
        hidden = [{**it, "output_hidden_states": True} for it in data]
        for others, pattern in (
            (naive, "labels count where attention_mask hides"),
            (left, "padded on the left"),
            (moved, "position_ids"),
            (hidden, "output_hidden_states"),
        ):
            together = data[:2] + others[2:4] + data[4:6]
            expected = by_torch(make("gpt2"), together)
            engine = self.engine(make("gpt2"), units="auto")
            self.near(train(engine, data[:2]), expected[:2])
            self.assertEqual(engine.way, "engine")
            self.near(train(engine, together[2:]), expected[2:], pattern)
            self.assertEqual(engine.way, "hooks")
            self.assertRegex(engine.way_reason, pattern)
            self.assertEqual(engine.global_step, 6)
            engine.close()
            with self.assertRaisesRegex(sluice.RefusedError, pattern):
                train(self.engine(make("gpt2")), others[:1])
        self.assertEqual(list(Path.cwd().glob("sluice-to-hooks-*")), [])

    def test_in_the_middle_of_a_step(self):
        """What the step has so far is computed once more, by hooks."""
        data = batches(12)
        for place in (2, 3, 4):  # of the second step: within it, and its last micro-batch
            together = list(data)
            together[4 + place - 1] = padded(data[4 + place - 1], left=True, labels=False)
            expected = by_torch(make("gpt2"), together, accumulation=4)
            folder = self.folder / f"run-{place}"
            engine = sluice.initialize(make("gpt2"), run_config(4), run_dir=folder)
            with engine, self.assertLogs("sluice", "WARNING") as logs:
                self.near(train(engine, together[:4]), expected[:1])
                self.assertEqual(engine.way, "engine")
                self.near(train(engine, together[4:]), expected[1:])
                self.assertEqual(engine.way, "hooks")
                self.assertRegex(" ".join(logs.output), "beginning with this step's micro-batches")
            tokens = [it["tokens_seen"] for it in sluice.metrics(folder)]
            self.assertEqual(tokens, [4 * 2 * LENGTH * step for step in (1, 2, 3)])
        engine = self.engine(make("gpt2"), 4)
        train(engine, data[:1])
        with self.assertRaisesRegex(sluice.RefusedError, "padded on the left"):
            engine(**padded(data[1], left=True))

    def test_refused_in_the_middle_of_a_step(self):
        """units="engine" says what to do, and the step goes on, or begins anew."""
        data = batches(4)
        hidden = padded(data[1], left=True)
        hidden["labels"] = hidden["input_ids"].masked_fill(hidden["attention_mask"] == 0, -100)
        expected = train(self.engine(make("llama"), 2), data[:1] + data[2:3])
        for anew, given in ((False, data[2:3]), (True, data[:1] + data[2:3])):
            engine = self.engine(make("llama"), 2)
            train(engine, data[:1])
            with self.assertRaisesRegex(
                sluice.RefusedError, 'the first one after padding.*units="hooks" computes it'
            ):
                engine(**hidden)
            if anew:
                engine.abandon()
            self.assertEqual(train(engine, given), expected)
            hidden["labels"][1, 3] = -100
            train(engine, [hidden, data[3]])
            self.assertEqual((engine.way, engine.global_step), ("engine", 2))
            hidden["labels"][1, 3] = hidden["input_ids"][1, 3]

    def test_in_the_middle_of_a_step_without_room_for_hooks(self):
        data = batches(4)
        expected = train(self.engine(make("gpt2"), 2), data[2:])
        engine = self.engine(make("gpt2"), 2, units="auto")
        train(engine, data[:1])
        with mock.patch.object(
            engine._training, "_go_on", wraps=engine._training._go_on
        ) as go_on:
            go_on.side_effect = [sluice.Error("no room"), mock.DEFAULT]
            with self.assertRaisesRegex(sluice.RefusedError, "Nor can it go on by hooks: no room"):
                engine(**{**data[1], "output_hidden_states": True})
        self.assertEqual(engine.way, "engine")
        self.assertEqual(train(engine, data[2:]), expected)

    def test_several_backward_passes_of_a_micro_batch(self):
        data = batches(12)

        def losses_of(model, accumulation):
            optimizer = torch_adamw(model)
            losses = []
            for first in range(0, len(data), 2 * accumulation):
                optimizer.zero_grad()
                loss = sum(model(**it).loss for it in data[first : first + 2 * accumulation])
                (loss / accumulation).backward()
                optimizer.step()
                losses.append(loss.item() / accumulation)
            return losses

        for accumulation in (1, 2, 3):
            for name in ("gpt2", "tied"):
                expected = losses_of(make(name), accumulation)
                engine = self.engine(make(name), accumulation, units="auto")
                losses = []
                for one, other in zip(data[::2], data[1::2]):
                    engine.backward(engine(**one).loss)
                    engine.backward(engine(**other).loss)
                    done = engine.step()
                    if done is not None:
                        losses.append(done.loss)
                self.near(losses, expected, f"{name}, {accumulation}")
                self.assertEqual(engine.way, "engine" if accumulation > 1 else "hooks")

    def test_several_passes_have_their_own_dropout(self):
        dropouts = {"resid_pdrop": 0.3, "embd_pdrop": 0.3, "attn_pdrop": 0.3}
        data = batches(4)
        alone = train(self.engine(make("gpt2", **dropouts), 2), data[:2])
        for places in (("cpu", "nvme"), ("cpu", "cpu")):
            steps = []
            for place in places:
                drive = Path(tempfile.mkdtemp(dir=self.folder))
                engine = self.engine(make("gpt2", **dropouts), 2, place, drive)
                steps.append([])
                for number, batch in enumerate(data):
                    losses = []
                    for _ in range(1 if number < 2 else 3):
                        loss = engine(**batch).loss
                        engine.backward(loss)
                        losses.append(loss.item())
                    self.assertEqual(len(set(losses)), len(losses))
                    done = engine.step()
                    if done is not None:
                        steps[-1].append((done.loss, done.grad_norm))
                steps[-1].append(masters(engine))
                engine.close()
            self.assertEqual(steps[0], steps[1])
            self.assertEqual(steps[0][0][0], alone[0])

    def test_a_graph_that_is_kept(self):
        data = batches(4)
        for accumulation in (1, 2):
            engine = self.engine(make("llama"), accumulation, units="auto")
            reference = make("llama")
            optimizer = torch_adamw(reference)
            total = 0.0
            for batch in data:
                expected = 2 * reference(**batch).loss / accumulation
                expected.backward()
                total += expected.item()
                loss = engine(**batch).loss
                engine.backward(loss, retain_graph=True)
                engine.backward(loss)
                done = engine.step()
                if done is not None:
                    norm = torch.nn.utils.get_total_norm([it.grad for it in reference.parameters()])
                    self.near([done.loss], [total])
                    self.assertAlmostEqual(done.grad_norm, norm.item(), delta=1e-5)
                    optimizer.step()
                    optimizer.zero_grad()
                    total = 0.0

    def test_a_graph_that_began_before_the_call(self):
        data = batches(6)

        def call(model, module, batch):
            embedded = module.get_input_embeddings()(batch["input_ids"])
            return model(inputs_embeds=embedded, labels=batch["labels"]).loss

        for name in ("llama", "tied"):
            reference = make(name)
            optimizer = torch_adamw(reference)
            engine = self.engine(make(name), 2, units="auto")
            own = train(engine, data[:2])
            for first in range(0, 6, 2):
                optimizer.zero_grad()
                total = 0.0
                for number, batch in enumerate(data[first : first + 2]):
                    if first == 0 or (first == 2 and number == 0):
                        loss = reference(**batch).loss / 2
                    else:
                        loss = call(reference, reference, batch) / 2
                    loss.backward()
                    total += loss.item()
                optimizer.step()
                if first == 0:
                    self.near(own, [total])
                    continue
                for number, batch in enumerate(data[first : first + 2]):
                    is_own = first == 2 and number == 0
                    loss = engine(**batch).loss if is_own else call(engine, engine.module, batch)
                    engine.backward(loss)
                    done = engine.step()
                self.near([done.loss], [total], name)
            self.assertEqual(engine.way, "hooks")

    def test_losses_of_the_logits(self):
        data = [it["input_ids"] for it in batches(4)]

        def loss_of(call, ids):
            return call(input_ids=ids).logits.float().logsumexp(-1).mean()

        model = make("llama")
        reference = twin(model)
        optimizer = torch_adamw(reference)
        engine = self.engine(model, units="auto")
        for ids in data:
            optimizer.zero_grad()
            expected = loss_of(reference, ids)
            expected.backward()
            optimizer.step()
            loss = loss_of(engine, ids)
            engine.backward(loss)
            self.assertAlmostEqual(engine.step().loss, expected.item(), delta=1e-5)

    def test_losses_beside_the_modules(self):
        """By the logits of a call with labels, and by two calls: they are repeated by hooks."""
        data = batches(4)

        def loss_of(call, batch):
            other = {"input_ids": batch["labels"], "labels": batch["input_ids"]}
            output = call(**other)
            return call(**batch).loss + output.loss + output.logits.logsumexp(-1).mean()

        model = make("tied")
        reference = twin(model)
        optimizer = torch_adamw(reference)
        engine = self.engine(model, units="auto")
        for batch in data:
            optimizer.zero_grad()
            expected = loss_of(reference, batch)
            expected.backward()
            optimizer.step()
            engine.backward(loss_of(engine, batch))
            self.assertAlmostEqual(engine.step().loss, expected.item(), delta=1e-5)
        self.assertRegex(engine.way_reason, "made of outputs.logits, or of several calls")

    def test_logits_with_dropout(self):
        dropouts = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
        for takes_loss in (False, True):
            engine = self.engine(make("gpt2", **dropouts), units="auto")
            losses = []
            for batch in batches(1) * 6:
                output = engine(**batch)
                loss = output.loss
                logits = output.logits[:, :-1].flatten(0, 1)
                if not takes_loss:
                    targets = batch["labels"][:, 1:].flatten()
                    loss = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
                engine.backward(loss)
                losses.append(engine.step().loss)
            self.assertRegex(engine.way_reason, "in training, with dropout")
            self.assertLess(losses[-1], losses[0])

    def test_a_hook_that_comes_later(self):
        for change, pattern in (
            (lambda it: it.h[0].register_forward_hook(lambda *_: None), "h.0 has hooks"),
            (lambda it: it.h[1].mlp.c_fc.weight.register_hook(lambda _: None), "c_fc.weight has"),
            (lambda it: setattr(it.h[1].mlp, "act", torch.nn.ReLU()), "h.1.mlp.act was replaced"),
            (lambda it: setattr(it.drop, "p", 0.5), "dropout of transformer.drop was changed"),
        ):
            engine = self.engine(make("gpt2"), units="auto")
            train(engine, batches(1))
            change(engine.module.transformer)
            train(engine, batches(1))
            self.assertRegex(engine.way_reason, pattern)

    def test_numbers_that_are_changed_later(self):
        """As the module computes from there on, which PyTorch does then."""

        def loss(logits, labels, vocab_size, **_):
            return logits.float().logsumexp(-1).mean()

        def attention(model):
            return model.model.layers[1].self_attn

        def past_versions(model):
            model.model.rotary_emb.inv_freq.data.mul_(3)

        for name, change, pattern in (
            ("llama", lambda it: setattr(it, "loss_function", loss), "loss_function was replaced"),
            ("llama", lambda it: setattr(it.model.norm, "variance_epsilon", 0.5), "variance_eps"),
            ("gpt2", lambda it: setattr(it.transformer.h[0].ln_1, "eps", 0.5), "eps of tran.*h.0"),
            ("qwen3", lambda it: setattr(attention(it), "scaling", 0.01), "scaling of .*1.self_"),
            ("llama", lambda it: it.model.rotary_emb.inv_freq.mul_(3), "the buffer inv_freq of"),
            ("llama", past_versions, "the buffer inv_freq of model.rotary_emb"),
            ("llama", lambda it: setattr(it.config, "num_hidden_layers", 1), "num_hidden_layers"),
        ):
            data = batches(3)
            model, reference = make(name), make(name)
            engine = self.engine(model, units="auto")
            optimizer = torch_adamw(reference)
            for step, batch in enumerate(data):
                if step == 1:
                    change(model)
                    change(reference)
                with torch.no_grad():
                    self.near([engine(**batch).loss.item()], [reference(**batch).loss.item()])
                optimizer.zero_grad()
                expected = reference(**batch).loss
                expected.backward()
                for it in reference.parameters():  # the engine's: a gradient of zero
                    it.grad = torch.zeros_like(it) if it.grad is None else it.grad
                optimizer.step()
                self.near(train(engine, [batch]), [expected.item()], f"{pattern}, step {step}")
                self.assertEqual(engine.way, "hooks" if step else "engine")
            self.assertRegex(engine.way_reason, pattern)
            engine.close()

    def test_rotary_tables_that_are_slightly_others(self):
        model = make("llama")
        model.model.rotary_emb.inv_freq[3] *= 1.01
        self.reason(model, "inv_freq of model.rotary_emb is not what its config says")
        rounded = make("llama")  # as another device may have it
        table = rounded.model.rotary_emb.inv_freq
        table.copy_(torch.nextafter(table, torch.full_like(table, 2)))
        self.assertEqual(self.engine(rounded).way, "engine")


def run_of(directory, drive):
    """The losses of a run that saves after each step, and what it ends with."""
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
