"""The package sluice, compared with plain PyTorch: the same losses, and the same bits with every
placement."""

import re
import tempfile
import unittest
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import sluice
from small_modules import (
    ADAMW,
    PLACES,
    VOCAB,
    WIDTH,
    Block,
    Tower,
    batches,
    initialize,
    masters,
    run_config,
    torch_adamw,
    tower,
    train,
    train_by_torch,
    twin,
)

STEPS = 20


class AgainstTorch(unittest.TestCase):
    # `noise`: parameters whose gradient is only rounding error, of which AdamW makes whole steps.
    def check(self, module, accumulation=1, clip=None, noise=(), **options):
        reference = twin(module)
        more = {"gradient_clipping": clip} if clip else {}
        micro_batches = batches(STEPS * accumulation)
        expected = train_by_torch(
            reference, torch_adamw(reference), micro_batches, accumulation, clip
        )
        with initialize(module, accumulation=accumulation, **more, **options) as engine:
            losses = train(engine, micro_batches)
            for loss, wanted in zip(losses, expected, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=1e-5)
            state = engine.state_dict()
            for name, value in reference.state_dict().items():
                if name not in noise:
                    self.assertLess((state[name].cpu() - value.cpu()).abs().max().item(), 1e-4, name)

    def test_tied_with_clipping_and_accumulation(self):
        self.check(tower(), accumulation=3, clip=1.0)

    def test_checkpointed(self):
        self.check(tower(checkpointed=True, tied=False))

    def test_a_checkpointed_region_of_several_units(self):
        class Regions(Tower):
            def hidden(self, tokens):
                x = self.embedding(tokens)
                for first in range(0, len(self.blocks), 2):
                    pair = self.blocks[first : first + 2]
                    x = checkpoint(
                        lambda it, pair=pair: pair[1](pair[0](it)), x, use_reentrant=False
                    )
                return self.norm(x)

        torch.manual_seed(0)
        self.check(Regions())

    def test_reentrant_checkpoints_of_a_unit_that_is_used_twice(self):
        # Its gradient is the sum of two backward passes within one.
        class Twice(Tower):
            def hidden(self, tokens):
                x = self.embedding(tokens)
                for block in [*self.blocks, *self.blocks]:
                    x = checkpoint(block, x, use_reentrant=True)
                return self.norm(x)

        torch.manual_seed(0)
        self.check(Twice(), accumulation=2)

    def test_a_unit_used_several_times_and_one_that_is_used_in_some_steps(self):
        class Sometimes(Tower):
            uses = 0

            def hidden(self, tokens):
                x = self.embedding(tokens)
                type(self).uses += 1
                for block in [self.blocks[0], self.blocks[1], self.blocks[0], self.blocks[2]]:
                    x = block(x)
                # Unused parameters get a gradient of zero here; PyTorch gives them none.
                return self.norm(x) + 0 * sum(it.sum() for it in self.blocks[3](x).unbind())

        torch.manual_seed(0)
        self.check(Sometimes(), accumulation=2)

    def test_half_of_it_frozen(self):
        module = tower(tied=False)
        for block in module.blocks[:2]:
            block.requires_grad_(False)
        module.blocks[2].up.requires_grad_(False)
        module.embedding.requires_grad_(False)
        self.check(module)

    def test_parameters_in_odd_places(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.tensor(0.5))  # zero-dimensional
                self.embedding = nn.Embedding(VOCAB, WIDTH)
                self.stages = nn.Sequential(
                    Block(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), nn.Identity()
                )
                self.offsets = nn.ParameterList(
                    [nn.Parameter(torch.zeros(WIDTH)) for _ in range(2)]
                )
                self.attention = nn.MultiheadAttention(
                    WIDTH, 2, batch_first=True
                )  # it reads the weights of its children
                self.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, VOCAB))
                self.shared = self.stages[0].norm  # part of a block, and also used outside of it

            def forward(self, tokens):
                x = (
                    self.stages(self.embedding(tokens)) * self.scale
                    + self.offsets[0]
                    - self.offsets[1]
                )
                x = self.shared(x + self.attention(x, x, x, need_weights=False)[0])
                return F.cross_entropy(
                    self.weighted(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
                )

        torch.manual_seed(0)
        self.check(Odd(), noise=["attention.in_proj_bias"])  # its key part has no gradient

    def test_buffers_that_forward_changes(self):
        class Normed(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding = nn.Embedding(VOCAB, WIDTH)
                self.parts = nn.Sequential(
                    nn.Conv1d(WIDTH, WIDTH, 3, padding=1, bias=False),
                    nn.BatchNorm1d(WIDTH),
                    nn.ReLU(),
                )
                self.head = nn.Linear(WIDTH, VOCAB)

            def forward(self, tokens):
                x = self.parts(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
                return F.cross_entropy(self.head(x)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

        torch.manual_seed(0)
        self.check(Normed())

    def test_sparse_gradients(self):
        module = tower(tied=False)
        module.embedding.sparse = True
        reference = twin(module)
        reference.embedding.sparse = False
        micro_batches = batches(4)
        expected = train_by_torch(reference, torch_adamw(reference), micro_batches)
        with initialize(module) as engine:
            for loss, wanted in zip(train(engine, micro_batches), expected, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=1e-5)

    def test_outputs_in_a_dataclass_and_a_loss_beside_the_output(self):
        @dataclass
        class Output:
            hidden: torch.Tensor

        class Routed(Block):
            def forward(self, x):
                self.extra = self.up(x).square().mean()
                return Output(super().forward(x))

        class Extra(Tower):
            def __init__(self):
                super().__init__(blocks=0, tied=False)
                self.blocks = nn.ModuleList(Routed() for _ in range(3))

            def forward(self, tokens):
                x = self.embedding(tokens)
                for block in self.blocks:
                    x = block(x).hidden
                logits = self.head(self.norm(x))[:, :-1].flatten(0, 1)
                extra = sum(block.extra for block in self.blocks)
                return F.cross_entropy(logits, tokens[:, 1:].flatten()) + 0.1 * extra

        torch.manual_seed(0)
        self.check(Extra())

    def test_only_a_loss_beside_the_output(self):
        # The block's output has no gradient, so the engine watches the part that produced the loss.
        class Aside(Block):
            def forward(self, x):
                self.extra = self.up(x).square().mean()
                return super().forward(x)

        class Extra(Tower):
            def __init__(self):
                super().__init__(blocks=0, tied=False)
                self.blocks = nn.ModuleList(Aside() for _ in range(3))

            def forward(self, tokens):
                x = self.embedding(tokens)
                for block in self.blocks:
                    block(x)
                return (
                    sum(block.extra for block in self.blocks)
                    + self.head(self.norm(x)).square().mean()
                )

        torch.manual_seed(0)
        module = Extra()
        reference = twin(module)
        micro_batches = batches(3)
        losses = []
        with initialize(module) as engine:
            losses = train(engine, micro_batches)
        optimizer = torch_adamw(reference)
        for loss, tokens in zip(losses, micro_batches):
            optimizer.zero_grad()
            wanted = reference(tokens)
            wanted.backward()
            for (
                parameter
            ) in reference.parameters():  # here, they decay even without a gradient
                parameter.grad = (
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                )
            optimizer.step()
            self.assertAlmostEqual(loss, wanted.item(), delta=1e-5)

    def test_several_losses_in_a_micro_batch(self):
        module = tower()
        reference = twin(module)
        optimizer = torch_adamw(reference)
        with initialize(module, accumulation=2) as engine:
            for tokens, others in zip(batches(8), batches(8, seed=2)):
                for it in (tokens, others):
                    (reference(it) / 2).backward()
                    engine.backward(engine(it))
                if engine.is_boundary:
                    optimizer.step()
                    optimizer.zero_grad()
                engine.step()
            for name, value in reference.state_dict().items():
                self.assertLess((engine.state_dict()[name] - value.cpu()).abs().max().item(), 1e-5, name)

    def test_one_graph_for_two_losses(self):
        module = tower(tied=False)
        reference = twin(module)
        tokens = batches(1)[0]

        def two_losses(run):
            hidden = run.hidden(tokens)
            return hidden.square().mean(), run.head(hidden).square().mean()

        class Both(nn.Module):
            def __init__(self, tower):
                super().__init__()
                self.tower = tower

            def forward(self, _tokens):
                return two_losses(self.tower)

        optimizer = torch_adamw(reference)
        first, second = two_losses(reference)
        (first + second).backward()
        optimizer.step()
        with initialize(Both(module)) as engine:
            first, second = engine(tokens)
            engine.backward(first, retain_graph=True)
            engine.backward(second)
            engine.step()
            state = engine.state_dict()
        for name, value in reference.state_dict().items():
            self.assertLess((state["tower." + name] - value.cpu()).abs().max().item(), 1e-5, name)

    def test_gradients_that_are_known_to_be_complete_change_no_bit(self):
        # On a GPU this is the default: a sum that is added to again crosses the bus.
        expected = None
        for learns in (False, True):
            module = tower(blocks=3)
            with initialize(module, accumulation=2, bf16={"enabled": True}) as engine:
                engine._steps._learns_parts = learns
                losses = train(engine, batches(8))
                self.assertEqual(engine._steps._is_single, [True] * 4)
                got = losses, masters(engine)
                if learns:  # once, a second loss in a block that had only one comes too late
                    engine.backward(engine(batches(1)[0]))
                    with self.assertRaisesRegex(sluice.Error, "more parts"):
                        engine.backward(engine(batches(1)[0]))
                    for _ in range(4):
                        engine.backward(engine(batches(1)[0]))
                        engine.backward(engine(batches(1)[0]))
                        engine.step()
                    self.assertEqual(engine.global_step, 6)
            expected = expected or got
            self.assertEqual(got, expected)

    def test_schedules_and_groups_are_the_configurations(self):
        module = tower()
        reference = twin(module)
        rates = []
        parts = [
            [it for it in reference.parameters() if it.ndim > 1],
            [it for it in reference.parameters() if it.ndim == 1],
        ]
        groups = [
            {"params": parts[0], "weight_decay": 0.1},
            {"params": parts[1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=0, betas=(0.9, 0.98))
        warmup = {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 4}
        options = {
            "optimizer": {"params": {**ADAMW, "lr": 1e-3, "decayed": "matrices"}},
            "scheduler": {"type": "WarmupLR", "params": {**warmup, "warmup_type": "linear"}},
        }
        with initialize(module, **options) as engine:
            for tokens in batches(8):
                for group in optimizer.param_groups:
                    group["lr"] = engine.learning_rate
                (expected,) = train_by_torch(reference, optimizer, [tokens])
                self.assertAlmostEqual(train(engine, [tokens])[0], expected, delta=1e-5)
                rates.append(engine.last_step.learning_rate)
                self.assertEqual(rates[-1], optimizer.param_groups[0]["lr"])
        self.assertEqual((rates[0], rates[-1]), (0, 1e-3))
        self.assertEqual(rates, sorted(rates))

    def test_a_run_files_model_has_no_say_in_which_parameters_groups_match(self):
        groups = [{"match": "blocks.*", "lr": 0.0}]
        options = {"optimizer": {"groups": groups}, "model": {"preset": "gpt2-small"}}
        module = tower()
        before = twin(module).state_dict()
        with self.assertLogs("sluice", "INFO") as logs, initialize(module, **options) as engine:
            train(engine, batches(3))
            for name, value in engine.state_dict().items():
                self.assertEqual(torch.equal(value.cpu(), before[name].cpu()), "blocks" in name, name)
        self.assertIn("model is ignored", "".join(logs.output))

    def test_rates_that_learn_nothing_are_warned_of_once(self):
        absurd = {"optimizer": {"params": {"lr": 1e9}}}
        grows = {"scheduler": {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 2.0}}}
        of_group = {"optimizer": {"groups": [{"match": "blocks.*", "lr": 2.0}]}}
        for options, rates, norms in (
            (absurd, ["1e+09"], 1),
            (of_group, ["2"], 0),
            ({"optimizer": {"params": {"lr": 0.0}, **of_group["optimizer"]}}, ["2"], 0),
            (grows, [], 0),
            ({"optimizer": {"params": {"lr": 0.9}}}, [], 0),
        ):
            module = tower()
            if norms:
                module.register_forward_hook(lambda _, __, loss: loss * 0)
            with self.assertLogs("sluice") as logs, initialize(module, **options) as engine:
                train(engine, batches(5))
            said = "\n".join(logs.output)
            self.assertEqual(re.findall("learning rate reaches (.*), and AdamW", said), rates)
            self.assertEqual(said.count("norm was exactly 0 for the last 3 steps, up to step 3"), norms)

    def test_a_state_dict_alone_keeps_its_copies(self):
        with initialize(tower()) as engine:
            values = engine._training.values
            made = []

            def gather(unit, gather=values._gather):
                copies = gather(unit)
                made.extend(weakref.ref(it) for it in copies)
                return copies

            values._gather = gather
            state = engine.state_dict()
            self.assertIs(state["head.weight"], state["embedding.weight"])
            self.assertEqual(len(made), len({id(it) for it in state.values()}))
            rounded = {name: state.pop(name).half() for name in list(state)}
            self.assertEqual([it() for it in made if it() is not None], [])
            made.clear()
            part = engine.module.blocks[0].norm.state_dict()  # its unit has other parameters, too
            self.assertTrue(torch.equal(part["bias"].half(), rounded["blocks.0.norm.bias"]))
            del part
            self.assertEqual([it() for it in made if it() is not None], [])

    def test_no_blocks_at_all(self):
        class Plain(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Parameter(torch.randn(VOCAB, VOCAB))

            def forward(self, tokens):
                return F.cross_entropy(
                    self.table[tokens][:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
                )

        torch.manual_seed(0)
        self.check(Plain())

    def test_units_by_a_policy(self):
        for policy, wanted in (
            (["blocks.[02]"], 2),
            ([nn.Linear], 9),
            (lambda name, _: name == "blocks", 1),
        ):
            with sluice.initialize(tower(tied=False), run_config(), units=policy) as engine:
                self.assertEqual(len(engine.units), wanted + 1)
                self.assertEqual(len(train(engine, batches(2))), 2)

    def test_a_compiled_forward_of_blocks(self):
        module = tower(blocks=2)
        reference = twin(module)
        for block in module.blocks:
            block.forward = torch.compile(block.forward, backend="aot_eager")
        micro_batches = batches(3)
        expected = train_by_torch(reference, torch_adamw(reference), micro_batches)
        with initialize(module) as engine:
            for loss, wanted in zip(train(engine, micro_batches), expected, strict=True):
                self.assertAlmostEqual(loss, wanted, delta=1e-5)


class Placements(unittest.TestCase):
    def test_change_no_bit(self):
        for precision in ({}, {"bf16": {"enabled": True}}):
            hashes = set()
            losses = set()
            for place in PLACES:
                with tempfile.TemporaryDirectory() as drive:
                    module = tower(dropout=0.1, tied=False, blocks=5)
                    module.blocks[1].requires_grad_(False)
                    torch.manual_seed(5)
                    with initialize(
                        module,
                        accumulation=2,
                        place=place,
                        drive=drive,
                        gradient_clipping=1.0,
                        **precision,
                    ) as engine:
                        losses.add(tuple(train(engine, batches(12))))
                        hashes.add(masters(engine))
                        in_store = engine.memory["nvme"]
                    self.assertEqual(bool(in_store), place not in ("cpu", "gpu"))
            self.assertEqual(len(losses), 1, precision)
            self.assertEqual(len(hashes), 1, precision)

    def test_units_are_read_ahead_in_the_order_that_was_learned(self):
        with tempfile.TemporaryDirectory() as drive:
            module = tower(tied=False, blocks=8)
            used = list(module.blocks)
            module.hidden = lambda it: module.norm(
                nn.Sequential(*reversed(used))(module.embedding(it))
            )
            with initialize(module, place="nvme", drive=drive) as engine:
                train(engine, batches(4))
                self.assertGreater(engine._trained.run.nvme_reads, 8)
                forward = [engine.units.index(f"blocks.{i}") for i in reversed(range(8))]
                self.assertEqual(engine._trained.residency._order, forward + forward[::-1])

    def test_nothing_is_left_on_the_drive(self):
        import os

        with tempfile.TemporaryDirectory() as drive:
            with initialize(tower(), place="nvme", drive=drive) as engine:
                train(engine, batches(1))
                self.assertTrue(os.listdir(drive))
            self.assertEqual(os.listdir(drive), [])


if __name__ == "__main__":
    unittest.main()
