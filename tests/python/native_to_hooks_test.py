"""Modules of transformers that native units cannot compute, or no longer can: hooks do, or an error
says why not."""

import contextlib
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch

import sluice
from native_models import NativeCase, LENGTH, LLAMA, batches, by_torch, make, padded, train
from small_modules import DEVICE, masters, run_config, torch_adamw, tower, twin
from transformers_test import MISSING

if MISSING is None:
    import transformers


class ByHooks(NativeCase):
    """Modules that "auto" leaves to PyTorch and "engine" refuses."""

    def reason(self, model, pattern):
        with self.assertRaisesRegex(sluice.RefusedError, f'units="engine".*{pattern}'):
            sluice.initialize(model, run_config(), units="engine")
        engine = self.engine(model, units="auto")
        self.assertEqual(engine.backend, "hooks")
        self.assertRegex(engine.backend_reason, pattern)
        return engine

    def test_other_modules(self):
        self.reason(tower(), "no units for Tower")

        class Own(transformers.LlamaForCausalLM):
            pass

        self.reason(Own(transformers.LlamaConfig(**LLAMA)), "no units for .*Own")
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

    def test_experts_that_are_one_parameter(self):
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": None}
        for name, more in (
            ("Qwen3Moe", {"head_dim": 16, "moe_intermediate_size": 40, "norm_topk_prob": True}),
            ("Mixtral", {}),
            ("GptOss", {"head_dim": 16, "eos_token_id": 2}),
        ):
            config = getattr(transformers, f"{name}Config")(**{**LLAMA, **experts, **more})
            torch.manual_seed(0)
            model = getattr(transformers, f"{name}ForCausalLM")(config).train()
            expected = by_torch(twin(model), batches(2))
            engine = self.reason(model, "experts.*all experts of a block")
            self.near(train(engine, batches(2)), expected)

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
            for sentence in ("position_ids.* Hooks .*cpu_gib", "position_ids"):
                with self.assertRaisesRegex(sluice.RefusedError, sentence):
                    engine(**moved)
                self.assertEqual(engine.backend, "engine")
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
        self.reason(model, "its logits differ")
        model = make("gpt2")
        model.config.soft_cap = 30.0
        self.reason(model, "soft_cap=30.0")
        self.reason(make("llama", hidden_act="gelu"), "hidden_act")
        self.reason(make("gpt2", resid_pdrop=0.1), "dropouts differ")

    def test_not_another_attention(self):
        model = make("llama", attn_implementation="flex_attention")
        self.assertEqual(self.engine(model).backend, "engine")
        self.assertEqual(model.config._attn_implementation, "flex_attention")

    def test_the_numbers_are_the_same(self):
        data = batches(3)
        model = make("gpt2", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model.transformer.h[1].register_forward_hook(lambda *_: None)
        expected = by_torch(make("gpt2"), data)
        self.near(train(self.engine(model, units="auto"), data), expected)

    def test_calls_that_units_do_not_compute(self):
        """An engine in use switches to hooks, keeps its moments and leaves no file behind."""
        self.enterContext(contextlib.chdir(self.folder))  # other tests' folders are not there
        data = batches(8)
        naive = [padded(it, left=False, labels=False) for it in data]
        left = [padded(it, left=True) for it in data]
        moved = [{**it, "position_ids": torch.arange(LENGTH)[None] + 3} for it in data]
        hidden = [{**it, "output_hidden_states": True} for it in data]
        for others, pattern in (
            (naive, "where attention_mask hides"),
            (left, "padded on the left"),
            (moved, "position_ids"),
            (hidden, "output_hidden_states"),
        ):
            together = data[:2] + others[2:4] + data[4:6]
            expected = by_torch(make("gpt2"), together)
            engine = self.engine(make("gpt2"), units="auto")
            self.near(train(engine, data[:2]), expected[:2])
            self.assertEqual(engine.backend, "engine")
            self.near(train(engine, together[2:]), expected[2:], pattern)
            self.assertEqual(engine.backend, "hooks")
            self.assertRegex(engine.backend_reason, pattern)
            self.assertEqual(engine.global_step, 6)
            engine.close()
            with self.assertRaisesRegex(sluice.RefusedError, pattern):
                train(self.engine(make("gpt2")), others[:1])
        self.assertEqual(list(self.folder.glob("sluice-to-hooks-*")), [])

    def test_in_the_middle_of_a_step(self):
        """The step's earlier micro-batches are computed again, by hooks."""
        data = batches(12)
        for place in (2, 3, 4):  # in the second step: within it, and in its last micro-batch
            together = list(data)
            together[4 + place - 1] = padded(data[4 + place - 1], left=True, labels=False)
            expected = by_torch(make("gpt2"), together, accumulation=4)
            folder = self.folder / f"run-{place}"
            engine = sluice.initialize(make("gpt2"), run_config(4), run_dir=folder)
            with engine, self.assertLogs("sluice", "WARNING") as logs:
                self.near(train(engine, together[:4]), expected[:1])
                self.assertEqual(engine.backend, "engine")
                self.near(train(engine, together[4:]), expected[1:])
                self.assertEqual(engine.backend, "hooks")
                self.assertRegex(" ".join(logs.output), "this step's micro-batches")
            tokens = [it["tokens_seen"] for it in sluice.metrics(folder)]
            self.assertEqual(tokens, [4 * 2 * LENGTH * step for step in (1, 2, 3)])
        engine = self.engine(make("gpt2"), 4)
        train(engine, data[:1])
        with self.assertRaisesRegex(sluice.RefusedError, "padded on the left"):
            engine(**padded(data[1], left=True))

    def test_refused_in_the_middle_of_a_step(self):
        """units="engine" says what to do, and the step continues or starts again."""
        data = batches(4)
        hidden = padded(data[1], left=True)
        hidden["labels"] = hidden["input_ids"].masked_fill(hidden["attention_mask"] == 0, -100)
        expected = train(self.engine(make("llama"), 2), data[:1] + data[2:3])
        for anew, given in ((False, data[2:3]), (True, data[:1] + data[2:3])):
            engine = self.engine(make("llama"), 2)
            train(engine, data[:1])
            with self.assertRaisesRegex(sluice.RefusedError, 'after padding.*units="hooks"'):
                engine(**hidden)
            if anew:
                engine.abandon()
            self.assertEqual(train(engine, given), expected)
            hidden["labels"][1, 3] = -100
            train(engine, [hidden, data[3]])
            self.assertEqual((engine.backend, engine.global_step), ("engine", 2))
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
            with self.assertRaisesRegex(sluice.RefusedError, "Hooks .*: no room"):
                engine(**{**data[1], "output_hidden_states": True})
        self.assertEqual(engine.backend, "engine")
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
                self.assertEqual(engine.backend, "engine" if accumulation > 1 else "hooks")

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
            self.assertEqual(engine.backend, "hooks")

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
        """Losses from the logits of a call with labels, or from two calls: repeated by hooks."""
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
        self.assertRegex(engine.backend_reason, "outputs.logits, .*several calls")

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
            self.assertRegex(engine.backend_reason, "in training, with dropout")
            self.assertLess(losses[-1], losses[0])

    def test_a_hook_that_comes_later(self):
        for change, pattern in (
            (lambda it: it.h[0].register_forward_hook(lambda *_: None), "h.0 has hooks"),
            (lambda it: it.h[1].mlp.c_fc.weight.register_hook(lambda _: None), "c_fc.weight has"),
            (lambda it: setattr(it.h[1].mlp, "act", torch.nn.ReLU()), "h.1.mlp.act was replaced"),
            (lambda it: setattr(it.drop, "p", 0.5), "transformer.drop was changed"),
        ):
            engine = self.engine(make("gpt2"), units="auto")
            train(engine, batches(1))
            change(engine.module.transformer)
            train(engine, batches(1))
            self.assertRegex(engine.backend_reason, pattern)

    def test_numbers_that_are_changed_later(self):
        """From then on, results are those of the changed module, as in PyTorch."""

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
            ("llama", lambda it: it.model.rotary_emb.inv_freq.mul_(3), "buffer inv_freq"),
            ("llama", past_versions, "inv_freq of model.rotary_emb"),
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
                for it in reference.parameters():  # the engine uses a gradient of zero
                    it.grad = torch.zeros_like(it) if it.grad is None else it.grad
                optimizer.step()
                self.near(train(engine, [batch]), [expected.item()], f"{pattern}, step {step}")
                self.assertEqual(engine.backend, "hooks" if step else "engine")
            self.assertRegex(engine.backend_reason, pattern)
            engine.close()

    def test_rotary_tables_that_are_slightly_others(self):
        model = make("llama")
        model.model.rotary_emb.inv_freq[3] *= 1.01
        self.reason(model, "inv_freq of model.rotary_emb differs")
        rounded = make("llama")  # as another device may compute it
        table = rounded.model.rotary_emb.inv_freq
        table.copy_(torch.nextafter(table, torch.full_like(table, 2)))
        self.assertEqual(self.engine(rounded).backend, "engine")


if __name__ == "__main__":
    unittest.main()
