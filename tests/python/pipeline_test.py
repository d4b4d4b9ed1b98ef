"""PipelineModule in one process: its layers, how they are cut into stages, and its training compared
with plain PyTorch's."""

import itertools
import random
import tempfile
import unittest
from collections import deque
from types import SimpleNamespace
from unittest import mock

import torch
from torch import nn

import sluice
import sluice.deepspeed
from pipeline_models import (
    config,
    gpt,
    loss_fn,
    micro_batches,
    pipeline,
    train_plainly,
)
from sluice.deepspeed.pipe import (
    LayerSpec,
    PipeDataParallelTopology,
    PipelineModule,
    TiedLayerSpec,
    partition,
    timing,
)
from sluice.deepspeed.pipe.schedule import Pass, one_forward_one_backward
from sluice.deepspeed.pipe.topology import PipelineParallelGrid

STEPS = 30


def all_cuts(layers, stages):
    for inner in itertools.combinations(range(1, layers), stages - 1):
        yield [0, *inner, layers]


def most(weights, bounds):
    return max(sum(weights[a:b]) for a, b in itertools.pairwise(bounds))


class Partition(unittest.TestCase):
    def test_balanced_has_the_least_maximum_of_all_cuts(self):
        generator = random.Random(0)
        for stages in range(1, 9):
            for _ in range(25):
                layers = generator.randint(stages, 10)
                weights = [generator.choice([0, 0, 1, 5, generator.randint(0, 50)]) for _ in range(layers)]
                bounds = partition.balanced([float(it) for it in weights], stages)
                self.assertEqual((bounds[0], bounds[-1], len(bounds)), (0, layers, stages + 1))
                self.assertTrue(all(a < b for a, b in itertools.pairwise(bounds)), bounds)
                least = min(most(weights, cut) for cut in all_cuts(layers, stages))
                self.assertEqual(most(weights, bounds), least, (weights, bounds))

    def test_uniform_differs_by_at_most_one_layer(self):
        for stages, layers in itertools.product(range(1, 9), range(8, 20)):
            bounds = partition.uniform(layers, stages)
            sizes = {b - a for a, b in itertools.pairwise(bounds)}
            self.assertLessEqual(max(sizes) - min(sizes), 1)
            self.assertEqual((bounds[0], bounds[-1]), (0, layers))
            for layer in range(layers):
                stage = partition.stage_of(bounds, layer)
                self.assertTrue(bounds[stage] <= layer < bounds[stage + 1])

    def test_equal_weights_are_cut_evenly(self):
        self.assertEqual(partition.balanced([1.0] * 8, 4), [0, 2, 4, 6, 8])


def exchanges(stage, stages, count, user):
    """What a stage calls, in order: ("swap", other, sent, received) or a pass. Stages 0 and 1 own
    tied modules that a later stage, `user`, uses as well. Each micro-batch is a lane."""
    plan = list(one_forward_one_backward(stage, stages, count))
    calls = [("swap", stage - 1, None, ("F", 0))] if stage > 0 else []
    for at, work in enumerate(plan):
        calls.append(work)
        after = plan[at + 1] if at + 1 < len(plan) else None
        wants = None if after is None else (after.kind, after.micro_batch)
        is_forward = work.kind is Pass.FORWARD
        if not is_forward and stage < min(2, user):
            calls.append(("swap", user, None, ("T", work.micro_batch)))
        swaps = []
        if stage + 1 < stages:
            sent = ("F", work.micro_batch) if is_forward else None
            received = ("B", wants[1]) if wants and wants[0] is Pass.BACKWARD else None
            swaps.append(("swap", stage + 1, sent, received))
        if stage > 0:
            sent = None if is_forward else ("B", work.micro_batch)
            received = ("F", wants[1]) if wants and wants[0] is Pass.FORWARD else None
            swaps.append(("swap", stage - 1, sent, received))
        owners = reversed(range(min(2, user))) if stage == user and not is_forward else ()
        sums = [("swap", owner, ("T", work.micro_batch), None) for owner in owners]
        calls += swaps if is_forward else [*swaps[1:], *sums, *swaps[:1]] if stage + 1 < stages else [
            *swaps, *sums]
    return deque(it for it in calls if it[0] != "swap" or it[2] or it[3])


def meet(queues, stage):
    """Lets the message that this stage sends first be received, if the other stage waits for it."""
    call = queues[stage][0] if queues[stage] else None
    if call is None or call[0] != "swap" or call[2] is None:
        return None
    there = queues[call[1]][0] if queues[call[1]] else None
    if there is None or there[0] != "swap" or there[1] != stage or there[3] is None:
        return None
    for at, left in ((stage, (None, call[3])), (call[1], (there[2], None))):
        kind, other, _, _ = queues[at].popleft()
        if left != (None, None):  # the call waits for its other message
            queues[at].appendleft((kind, other, *left))
    return call[2], there[3]


class Schedule(unittest.TestCase):
    def test_no_order_of_synchronous_messages_deadlocks(self):
        for stages, count, user in itertools.product(range(1, 9), range(1, 13), range(8)):
            if user >= stages:
                continue
            queues = [exchanges(stage, stages, count, user) for stage in range(stages)]
            flying = [set() for _ in range(stages)]
            while any(queues):
                moved = False
                for stage, queue in enumerate(queues):
                    while queue and queue[0][0] != "swap":
                        work = queue.popleft()
                        (flying[stage].add if work.kind is Pass.FORWARD else flying[stage].remove)(
                            work.micro_batch
                        )
                        self.assertLessEqual(len(flying[stage]), stages - stage)
                        moved = True
                    met = meet(queues, stage)
                    if met is not None:
                        self.assertEqual(*met)
                        moved = True
                self.assertTrue(moved, (stages, count, queues))

    def test_each_micro_batch_has_one_forward_before_one_backward(self):
        for stages in range(1, 9):
            for stage, count in itertools.product(range(stages), range(1, 10)):
                plan = list(one_forward_one_backward(stage, stages, count))
                for kind in Pass:
                    self.assertEqual(
                        [it.micro_batch for it in plan if it.kind is kind], list(range(count))
                    )


class Heavy(nn.Module):
    clock = 0.0

    def __init__(self, repeats):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.linear = nn.Linear(64, 64)
        self.repeats = repeats

    def forward(self, x):
        x = self.norm(x)
        Heavy.clock += self.repeats
        x = self.linear(x)
        return nn.functional.dropout(x.relu_(), 0.1, self.training)


class Timing(unittest.TestCase):
    def test_each_layer_is_timed_and_nothing_changes(self):
        layers = [*(Heavy(it) for it in (1, 1, 300, 1)), lambda x: x.relu_(), LayerSpec(Heavy, 1)]
        before = [{k: v.clone() for k, v in it.state_dict().items()} for it in layers[:4]]
        example = torch.randn(8, 64)
        state = torch.get_rng_state()
        clock = SimpleNamespace(perf_counter=lambda: Heavy.clock)
        with mock.patch.object(timing, "time", clock):
            seconds = timing.layer_seconds(layers, example, sluice.ranks.join())
        self.assertTrue(torch.equal(torch.get_rng_state(), state))
        self.assertEqual(seconds, [1, 1, 300, 1, 0, 1])
        for values, layer in zip(before, layers):
            for name, value in layer.state_dict().items():
                self.assertTrue(torch.equal(value, values[name]), name)
            self.assertTrue(all(it.grad is None for it in layer.parameters()))
        module = PipelineModule(layers, 1, partition_method="time", example_inputs=example)
        self.assertEqual(module.parts, [0, 6])


class Topology(unittest.TestCase):
    def test_numbers_are_deepspeeds(self):
        topology = PipeDataParallelTopology(num_pp=2, num_dp=3)
        self.assertEqual(topology.get_rank(pipe=1, data=2), 5)
        self.assertEqual(topology.get_coord(4).data, 1)
        self.assertEqual(topology.get_axis_comm_lists("pipe"), [[0, 3], [1, 4], [2, 5]])
        self.assertEqual(topology.get_axis_comm_lists("data"), [[0, 1, 2], [3, 4, 5]])
        for rank in range(6):
            grid = PipelineParallelGrid(topology, rank)
            coord = topology.get_coord(rank)
            self.assertEqual(coord, (grid.get_stage_id(), grid.get_data_parallel_id()))
            self.assertEqual(grid.stage_to_global(1), topology.get_rank(pipe=1, data=coord.data))


class Training(unittest.TestCase):
    def assert_like_plain(self, module, **more):
        expected, plain = train_plainly(STEPS)
        engine, _, _, _ = sluice.deepspeed.initialize(model=module, config=config(**more))
        losses = [engine.train_batch(iter(micro_batches(step))).item() for step in range(STEPS)]
        for step, (one, other) in enumerate(zip(losses, expected)):
            self.assertAlmostEqual(one, other, delta=1e-5, msg=f"step {step}")
        state = {key.replace(".tied.", "."): it for key, it in engine.engine.state_dict().items()}
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=0, atol=2e-4, msg=name)
        evaluated = engine.eval_batch(iter(micro_batches(99)))
        plain.eval()
        with torch.no_grad():
            means = [loss_fn(plain(x), y).item() for x, y in micro_batches(99)]
        self.assertAlmostEqual(evaluated.item(), sum(means) / len(means), delta=1e-4)
        engine.destroy()

    def test_has_the_losses_of_plain_pytorch(self):
        self.assert_like_plain(pipeline())

    def test_has_them_with_checkpointed_activations(self):
        self.assert_like_plain(pipeline(activation_checkpoint_interval=2))
        self.assert_like_plain(
            pipeline(activation_checkpoint_interval=1, checkpointable_layers=["Attention"])
        )

    def test_recomputes_with_the_same_dropout(self):
        weights = []
        for interval, seeds in itertools.product((0, 1, 3), (True, False)):
            torch.manual_seed(5)
            layers = gpt(dropout=0.3)
            module = pipeline(layers=layers, activation_checkpoint_interval=interval, seed_layers=seeds)
            engine, _, _, _ = sluice.deepspeed.initialize(model=module, config=config())
            torch.manual_seed(6)
            for step in range(3):
                engine.train_batch(iter(micro_batches(step)))
            weights.append(engine.engine.state_dict())
            engine.destroy()
        for state in weights[2:]:
            other = weights[0 if torch.equal(state["2.up.weight"], weights[0]["2.up.weight"]) else 1]
            for name, value in other.items():
                self.assertTrue(torch.equal(state[name], value), name)

    def test_a_tuple_of_one_stays_a_tuple_when_it_is_computed_again(self):
        class Row(nn.Linear):
            def forward(self, inputs):
                return (super().forward(inputs[0]).tanh(),)

        def of_row(predicted, labels):
            return nn.functional.mse_loss(predicted[0], labels)

        generator = torch.Generator().manual_seed(0)
        batch = [[torch.randn(3, 8, generator=generator) for _ in range(2)] for _ in range(4)]
        losses = []
        for interval in (0, 1, 2):
            module = pipeline(
                layers=[lambda x: (x,), *(LayerSpec(Row, 8, 8) for _ in range(3))],
                loss_fn=of_row,
                activation_checkpoint_interval=interval,
            )
            engine, _, _, _ = sluice.deepspeed.initialize(model=module, config=config())
            losses.append([engine.train_batch(iter(batch)).item() for _ in range(2)])
            engine.destroy()
        self.assertEqual(losses[1:], losses[:1] * 2)

    def test_a_step_that_failed_leaves_nothing_of_tied_layers(self):
        def train(fails):
            engine, _, _, _ = sluice.deepspeed.initialize(
                model=pipeline(), config=config(run={"lanes": 1})
            )
            engine.train_batch(iter(micro_batches(0)))
            if fails:
                passes = itertools.count()

                def fail_third(*args):
                    if next(passes) == 2:
                        raise ValueError("third")
                    return loss_fn(*args)

                engine.module.loss_fn = fail_third
                with self.assertRaisesRegex(ValueError, "third"):
                    engine.train_batch(iter(micro_batches(5)))
                engine.module.loss_fn = loss_fn
            engine.train_batch(iter(micro_batches(1)))
            state = engine.engine.state_dict()
            engine.destroy()
            return state

        state = train(fails=False)
        for name, value in train(fails=True).items():
            self.assertTrue(torch.equal(state[name], value), name)

    def test_placements_have_the_same_bits(self):
        states = []
        for place in ("cpu", "nvme", "mixed"):
            with tempfile.TemporaryDirectory() as drive:
                engine, _, _, _ = sluice.deepspeed.initialize(
                    model=pipeline(), config=config(place=place, drive=drive)
                )
                for step in range(4):
                    engine.train_batch(iter(micro_batches(step)))
                states.append(engine.engine.state_dict())
                engine.destroy()
        for state in states[1:]:
            for name, value in states[0].items():
                self.assertTrue(torch.equal(state[name], value), name)

    def test_resumes_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            engine, _, _, _ = sluice.deepspeed.initialize(model=pipeline(), config=config())
            for step in range(3):
                engine.train_batch(iter(micro_batches(step)))
            engine.save_checkpoint(folder, client_state={"step": 3})
            expected = [engine.train_batch(iter(micro_batches(step))).item() for step in (3, 4)]
            state = engine.engine.state_dict()
            engine.destroy()
            engine, _, _, _ = sluice.deepspeed.initialize(model=pipeline(), config=config())
            path, client = engine.load_checkpoint(folder)
            self.assertEqual((path, client), (f"{folder}/global_step3", {"step": 3}))
            got = [engine.train_batch(iter(micro_batches(step))).item() for step in (3, 4)]
            self.assertEqual(got, expected)
            for name, value in engine.engine.state_dict().items():
                self.assertTrue(torch.equal(state[name], value), name)
            engine.save_checkpoint(folder, tag="global_step3")  # replaces the other
            engine.destroy()

    def test_a_sequential_of_convolutions_trains(self):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Dropout(),
            nn.Linear(8 * 16, 10),
        )
        data = torch.utils.data.TensorDataset(torch.randn(64, 3, 8, 8), torch.randint(0, 10, (64,)))
        module = PipelineModule(
            layers=[*net, lambda x: x.view(x.size(0), -1)],
            loss_fn=nn.CrossEntropyLoss(),
            num_stages=1,
            partition_method="type:conv|linear",
            activation_checkpoint_interval=0,
        )
        engine, _, loader, _ = sluice.deepspeed.initialize(
            model=module,
            model_parameters=[p for p in module.parameters() if p.requires_grad],
            training_data=data,
            config={
                "train_batch_size": 8,
                "train_micro_batch_size_per_gpu": 2,
                "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
                "steps_per_print": 1000,
                "run": {"device": "cpu"},
            },
        )
        self.assertEqual(len(loader), 32)
        self.assertTrue(engine.is_first_stage() and engine.is_last_stage())
        losses = [engine.train_batch().item() for _ in range(8)]
        engine.set_dataloader(loader.loader)
        losses += [engine.train_batch().item() for _ in range(8)]
        with self.assertRaises(StopIteration):
            engine.train_batch()
        engine.set_dataloader(sluice.deepspeed.utils.RepeatingLoader(loader.loader))
        for _ in range(30):
            losses.append(engine.train_batch().item())
        self.assertLess(sum(losses[-8:]), sum(losses[:8]))
        loss, outputs = engine.eval_batch(iter(loader), return_logits=True, num_micro_batches=2)
        self.assertEqual(outputs.shape, (2, 10))
        self.assertEqual(loss.dim(), 0)
        engine.destroy()


class Refusals(unittest.TestCase):
    def refused(self, what, make, *args, **kwargs):
        with self.assertRaisesRegex(sluice.RefusedError, what):
            make(*args, **kwargs)

    def test_of_layers(self):
        linear = nn.Linear(2, 2)
        self.refused("list is empty", PipelineModule, [], num_stages=1)
        self.refused("num_stages= or topology=", PipelineModule, [linear])
        self.refused("does not divide the number of ranks", PipelineModule, [linear], num_stages=2)
        self.refused("layer 1 is <class", PipelineModule, [linear, nn.ReLU], num_stages=1)
        self.refused("no trained parameters", PipelineModule, [nn.ReLU()], num_stages=1)
        self.refused('"fast" is not valid', PipelineModule, [linear], 1, partition_method="fast")
        self.refused("needs example_inputs", PipelineModule, [linear], 1, partition_method="time")
        self.refused("matches none", PipelineModule, [linear], 1, partition_method="type:conv")
        self.refused("is no pattern", PipelineModule, [linear], 1, partition_method="type:(")
        self.refused("class of torch.nn.Module", LayerSpec, linear)
        self.refused("2 ranks, and 1", PipelineModule, [linear], topology=PipeDataParallelTopology(2, 1))
        inner = PipelineModule([linear], num_stages=1)
        self.refused("layer 0 is a PipelineModule", PipelineModule, [inner], num_stages=1)

    def test_of_tied_layers(self):
        def tied(*sizes, attribute="weight", kind=nn.Linear):
            return [TiedLayerSpec("k", kind, *it, tied_weight_attr=attribute) for it in sizes]

        self.refused("weight is .3, 3. in one", PipelineModule, tied((3, 3), (3, 4)), num_stages=1)
        self.refused("differ in bias", PipelineModule, tied((3, 3), (3, 3, False)), num_stages=1)
        self.refused("no tensor scale", PipelineModule, tied((3, 3), attribute="scale"), num_stages=1)

    def test_of_passes_and_data(self):
        engine, _, _, _ = sluice.deepspeed.initialize(model=pipeline(), config=config())
        tokens, labels = micro_batches(0)[0]
        for call in (lambda: engine(tokens), lambda: engine.backward(tokens), engine.step):
            self.refused("call train_batch", call)
        self.refused("after 3 of the 4", engine.train_batch, iter(micro_batches(0)[:3]))
        self.refused("pair, .inputs, labels", engine.train_batch, iter([tokens] * 4))
        with self.assertRaises(StopIteration):
            engine.train_batch(iter([]))
        with torch.no_grad():
            self.refused("needs gradients", engine.train_batch, iter(micro_batches(0)))
        engine.set_batch_fn(lambda batch: (batch["x"], batch["y"]))
        loss = engine.train_batch(iter([{"x": x, "y": y} for x, y in micro_batches(0)]))
        self.assertGreater(loss.item(), 0)
        engine.destroy()
        engine, _, _, _ = sluice.deepspeed.initialize(
            model=pipeline(loss_fn=None), config=config()
        )
        self.refused("no loss_fn", engine.train_batch, iter(micro_batches(0)))
        engine.destroy()


if __name__ == "__main__":
    unittest.main()
