"""Pipelines of several stages and data ranks: the bits of one process, checkpoints that any number
of stages continues, and ranks that are killed."""

import hashlib
import json
import os
import tempfile
import unittest

import torch

import sluice
import sluice.deepspeed
from pipeline_models import (
    config,
    gpt,
    loss_fn,
    of_rank,
    pipeline,
    shared_blocks,
    train_plainly,
)
from rank_processes import Ranks
from sluice.deepspeed.pipe import LayerSpec, PipeDataParallelTopology
from small_modules import VOCAB, WIDTH

STEPS = 30


def hashes(engine):
    """By name, of this stage's parameters."""
    return {
        name: hashlib.sha256(value.detach().float().cpu().numpy().tobytes()).hexdigest()
        for name, value in engine.engine.state_dict().items()
    }


def run(case):
    """Losses, hashes and the loss of an evaluation of this rank's part of a case."""
    stages = case.get("stages", 1)
    world = sluice.ranks.world_size()
    data_ranks = world // stages
    data = sluice.ranks.rank() % data_ranks
    dropout = case.get("dropout", 0.0)
    layers = gpt(dropout=dropout, tied=case.get("tied", True), counted=case.get("counted", False))
    if case.get("wide"):  # activations between blocks are fp32 whatever the engine computes with
        layers = wide_blocks()
    by_topology = data_ranks > 1
    module = pipeline(
        None if by_topology else stages,
        shared_blocks(dropout) if case.get("shared") else layers,
        topology=PipeDataParallelTopology(stages, data_ranks) if by_topology else None,
        partition_method=case.get("partition", "parameters"),
        activation_checkpoint_interval=case.get("interval", 0),
    )
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(case.get("frozen", "none")))
    engine, _, _, _ = sluice.deepspeed.initialize(
        model=module,
        config=config(
            data_ranks,
            case.get("place", "cpu"),
            case.get("drive"),
            zero_optimization={"stage": case.get("zero", 3)},
            **case.get("config", {}),
        ),
    )
    if case.get("load"):
        engine.load_checkpoint(case["load"])
    losses, scales = [], []
    for step in range(case.get("first", 0), case.get("last", 4)):
        batch = of_rank(step, data, data_ranks)
        if case.get("poisoned") == step:
            engine.module.loss_fn = poisoned
        losses.append(engine.train_batch(iter(batch)).item())
        if case.get("poisoned") == step:
            engine.module.loss_fn = loss_fn
        scales.append([engine.engine.loss_scale, engine.skipped_steps, engine.get_global_grad_norm()])
    if case.get("save"):
        engine.save_checkpoint(case["save"], client_state={"last": case["last"]})
    weights = hashes(engine)
    evaluated = engine.eval_batch(iter(of_rank(77, data, data_ranks))).item()
    result = {"losses": losses, "weights": weights, "evaluated": evaluated, "scales": scales}
    engine.destroy()
    return result


class WideBlock(torch.nn.Linear):
    def forward(self, x):
        return x.float() + super().forward(x.to(self.weight.dtype)).float()


def wide_blocks():
    return [
        LayerSpec(torch.nn.Embedding, VOCAB, WIDTH),
        *(LayerSpec(WideBlock, WIDTH, WIDTH) for _ in range(3)),
        lambda x: x.bfloat16(),
        LayerSpec(torch.nn.Linear, WIDTH, VOCAB),
    ]


def poisoned(logits, labels):
    return loss_fn(logits, labels) * float("inf")


# In the shape of DeepSpeedExamples' training/pipeline_parallelism/train.py, with smaller numbers.
EXAMPLE = """
import torch
import torch.distributed as dist
import sluice.deepspeed as deepspeed
from sluice.deepspeed.pipe import PipelineModule
from sluice.deepspeed.utils import RepeatingLoader

class AlexNet(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(8, 12, 3, padding=1), torch.nn.ReLU(inplace=True))
        self.avgpool = torch.nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = torch.nn.Sequential(
            torch.nn.Linear(48, 32), torch.nn.ReLU(inplace=True), torch.nn.Linear(32, num_classes))

def join_layers(vision_model):
    return [
        *vision_model.features,
        vision_model.avgpool,
        lambda x: torch.flatten(x, 1),
        *vision_model.classifier,
    ]

def train_pipe(stages, part):
    deepspeed.runtime.utils.set_random_seed(1138)
    net = AlexNet(num_classes=10)
    net = PipelineModule(layers=join_layers(net), loss_fn=torch.nn.CrossEntropyLoss(), num_stages=stages,
                         partition_method=part, activation_checkpoint_interval=0)
    trainset = torch.utils.data.TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 10, (32,)))
    engine, _, _, _ = deepspeed.initialize(
        config={"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "steps_per_print": 2000,
                "optimizer": {"type": "Adam", "params": {"lr": 0.005, "betas": [0.9, 0.999], "eps": 1e-8}},
                "run": {"device": "cpu"}},
        model=net,
        model_parameters=[p for p in net.parameters() if p.requires_grad],
        training_data=trainset)
    losses = [engine.train_batch().item() for step in range(24)]
    engine.destroy()
    return losses

deepspeed.init_distributed(dist_backend="gloo")
"""


def main():
    for case in json.loads(os.environ["WHAT"]):
        print(json.dumps(run(case)), flush=True)


CODE = "import pipeline_ranks_test\npipeline_ranks_test.main()"


class Pipelines(unittest.TestCase):
    maxDiff = None

    def on_ranks(self, world, *cases):
        """The results of cases: those of the first rank, with the weights of all."""
        codes, texts = Ranks(CODE, world, WHAT=json.dumps(cases)).wait()
        self.assertEqual(codes, [0] * world, "\n".join(texts))
        told = [[json.loads(it) for it in text.splitlines() if it.startswith("{")] for text in texts]
        results = []
        for by_rank in zip(*told, strict=True):
            weights = {}
            for of_rank_ in by_rank:
                for name, value in of_rank_["weights"].items():
                    self.assertEqual(weights.setdefault(name, value), value, name)
                for same in ("losses", "evaluated", "scales"):
                    self.assertEqual(repr(of_rank_[same]), repr(by_rank[0][same]))
            results.append({**by_rank[0], "weights": weights})
        return results

    def assert_same(self, one, other, *what):
        for key in what or ("losses", "weights", "scales"):
            self.assertEqual(one[key], other[key], key)

    def test_two_stages_have_the_losses_of_plain_pytorch(self):
        expected, _ = train_plainly(STEPS)
        got = self.on_ranks(2, {"stages": 2, "last": STEPS})[0]
        for step, (one, other) in enumerate(zip(got["losses"], expected, strict=True)):
            self.assertAlmostEqual(one, other, delta=1e-5, msg=f"step {step}")

    def test_have_the_bits_of_one_process(self):
        cases = [
            {},
            {"dropout": 0.2},
            {"partition": "uniform", "tied": False},
            {"partition": "type:attention", "interval": 2, "dropout": 0.2},
            {"config": {"bf16": {"enabled": True}}},
            {"zero": 1},
            {"shared": True, "dropout": 0.1, "partition": "uniform"},
            {"wide": True, "partition": "uniform", "config": {"bf16": {"enabled": True}}},
            {"frozen": "0."},
        ]
        alone = [run(case) for case in cases]
        for stages, data_ranks, of_cases in ((2, 1, (0, 3, 4, 8)), (3, 1, (1, 2, 7)), (4, 1, (6,)), (2, 2, (0, 4, 5, 6))):
            chosen = [{**cases[it], "stages": stages} for it in of_cases]
            results = self.on_ranks(stages * data_ranks, *chosen)
            expected = [alone[it] for it in of_cases]
            for case, one, other in zip(chosen, expected, results, strict=True):
                with self.subTest(case=case, stages=stages, data=data_ranks):
                    self.assert_same(one, other)
                    self.assertAlmostEqual(one["evaluated"], other["evaluated"], places=6)

    def test_a_checkpoint_of_two_stages_is_continued_by_one_and_by_four(self):
        alone = run({"last": 4, "counted": True})
        with tempfile.TemporaryDirectory() as folder:
            self.on_ranks(2, {"stages": 2, "last": 2, "counted": True, "save": folder})
            rest = {"first": 2, "last": 4, "counted": True, "load": folder}
            got = [run({**rest, "save": f"{folder}/one"})]
            got += self.on_ranks(4, {**rest, "stages": 4}, {**rest, "stages": 2})
            cut_elsewhere = {**rest, "stages": 2, "partition": "type:counted|norm|embedding"}
            got += self.on_ranks(2, {**rest, "stages": 2}, cut_elsewhere, {"stages": 1, **rest})
            passes = [one["weights"].pop("7.passes") for one in (alone, *got)]
            of_one_data_rank = [*passes[:3], *passes[4:6]]  # two have half of the passes each
            self.assertEqual(of_one_data_rank, passes[:1] * 5)
            for one in got:
                self.assertEqual(one["losses"], alone["losses"][2:])
                self.assertEqual(one["weights"], alone["weights"])
            with self.assertRaisesRegex(sluice.RefusedError, "of 10 layers, and this one has 9"):
                run({**rest, "counted": False})
            os.remove(f"{folder}/global_step2/sluice-pipeline.json")
            with self.assertRaisesRegex(sluice.Error, "no complete checkpoint of a pipeline"):
                run(rest)

    def test_places_of_a_stage_change_no_bit(self):
        alone = run({"last": 3})
        with tempfile.TemporaryDirectory() as drive:
            cases = [
                {"stages": 2, "last": 3, "place": place, "drive": drive} for place in ("nvme", "mixed")
            ]
            for case, got in zip(cases, self.on_ranks(2, *cases), strict=True):
                with self.subTest(case=case):
                    self.assert_same(alone, got)
            self.assertEqual(os.listdir(drive), [])

    def test_all_stages_skip_a_step_and_scale_losses_alike(self):
        fp16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1, "loss_scale_window": 2}
        case = {"poisoned": 1, "last": 5, "config": {"fp16": fp16}}
        alone = run(case)
        self.assertEqual([it[:2] for it in alone["scales"]][:3], [[256.0, 0], [128.0, 1], [128.0, 1]])
        got = self.on_ranks(3, {**case, "stages": 3})[0]
        self.assert_same(alone, got, "weights")
        self.assertEqual(repr(got["scales"]), repr(alone["scales"]))

    def test_deepspeeds_example_trains_with_its_import_changed(self):
        code = f"""
{EXAMPLE}
for part in ("parameters", "uniform", "type:conv|linear"):  # a stage may begin with an in-place ReLU
    print(json.dumps(train_pipe(int(os.environ["STAGES"]), part)))
"""
        results = []
        for stages in (1, 2):
            codes, texts = Ranks(code, stages, STAGES=str(stages)).wait()
            self.assertEqual(codes, [0] * stages, "\n".join(texts))
            results.append([it for it in texts[-1].splitlines() if it.startswith("[")])
        self.assertEqual(results[0], results[1])
        for losses in map(json.loads, results[0]):
            self.assertLess(sum(losses[-4:]), sum(losses[:4]))

    def test_what_one_rank_refuses_all_raise(self):
        code = """
from pipeline_models import *
import sluice.deepspeed
rank = sluice.ranks.rank()
def refused(what, call):
    try:
        call()
    except BaseException as error:
        assert what in f"{type(error).__name__}: {error}", (what, error)
    else:
        raise AssertionError(what)
shared = torch.nn.Linear(2, 2)
refused("1 layers cannot be divided into 2 stages", lambda: pipeline(2, [shared]))
refused("does not divide the number of ranks, 2", lambda: pipeline(4, gpt()))
refused("share a parameter", lambda: pipeline(2, [shared, shared], partition_method="uniform"))
refused("stage 1 has no trained parameters",
        lambda: pipeline(2, [shared, torch.nn.ReLU()], partition_method="uniform"))
engine, _, _, _ = sluice.deepspeed.initialize(model=pipeline(2, gpt()), config=config())
refused("StopIteration", lambda: engine.train_batch(iter([])))
few = micro_batches(0)[: 4 if rank == 0 else 2]
refused("rank 1: the iterator ended after 2 of the 4", lambda: engine.train_batch(iter(few)))
print(engine.train_batch(iter(micro_batches(0))).item(), flush=True)
print("as one", file=sys.stderr, flush=True)
engine.eval_batch(iter(micro_batches(rank)))
engine.eval_batch(iter(micro_batches(rank)))
engine.module.loss_fn = lambda predicted, labels: loss_fn(predicted, labels) * float("nan")
refused("NonFiniteGradientError: the gradient of step 2 is not finite, in unit",
        lambda: engine.train_batch(iter(micro_batches(1))))
"""
        codes, texts = Ranks(code, 2).wait()
        self.assertEqual(codes, [0, 0], "\n".join(texts))
        self.assertAlmostEqual(float(texts[0].splitlines()[0]), run({"last": 1})["losses"][0])
        for text, times in zip(texts, (1, 0)):
            before, after = text.split("as one")
            self.assertEqual(before.count("different labels"), 0)
            self.assertEqual(after.count("different labels"), times)


if __name__ == "__main__":
    unittest.main()
