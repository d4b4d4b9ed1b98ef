"""The package sluice on several ranks: the bits of one rank, by hooks and by the engine's units, and
wherever the planner places them."""

import hashlib
import json
import os
import tempfile
import unittest
from pathlib import Path

import torch

import sluice
from rank_processes import Ranks, of_steps, start
from small_modules import DEVICE, PLACES, batches, masters, run_config, train

STEPS = 4


def alone(first, last, load=None, save=None, lanes=2, **options):
    """Losses and a hash of the master weights, on one rank."""
    with start(1, lanes=lanes, **options) as engine:
        if load:
            engine.load_checkpoint(load)
        losses = []
        for step in range(first, last):
            losses += train(engine, batches(lanes, seed=step))
        if save:
            engine.save_checkpoint(save)
        return losses, masters(engine)


def among_ranks(case):
    """One rank's part of a case of Bits: the same as alone(), with its share of the batches."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    drive = case["drive"]
    options = {"lanes": max(world, 2), "communication": case["communication"]}
    with start(world, case["place"], drive, case["stage"], **options) as engine:
        if case["load"]:
            engine.load_checkpoint(case["load"])
        losses = train(engine, of_steps(case["first"], case["last"], world, rank))
        if case["save"]:
            engine.save_checkpoint(case["save"], {"rank": rank})
        path = Path(drive) / "weights.safetensors"
        engine.save_weights(path)  # the first rank writes it
        weights = hashlib.sha256(path.read_bytes()).hexdigest() if rank == 0 else None
        print(json.dumps([losses, weights]), flush=True)


class Bits(unittest.TestCase):
    def run_ranks(self, cases, world=2, hosts=1):
        """Losses and hashes by case."""
        defaults = {"first": 0, "place": "cpu", "stage": 3, "load": None, "save": None,
                    "communication": {}}
        code = 'for case in json.loads(os.environ["WHAT"]): among_ranks(case)'
        code = f"from ranks_test import *\n{code}"
        with tempfile.TemporaryDirectory() as drive:
            what = json.dumps([{**defaults, **case, "drive": drive} for case in cases])
            codes, texts = Ranks(code, world, hosts, WHAT=what).wait()
            self.assertEqual(codes, [0] * world, "\n".join(texts))
            self.assertEqual(os.listdir(drive), ["weights.safetensors"])
        told = [[json.loads(it) for it in text.splitlines()[: len(cases)]] for text in texts]
        for by_rank in zip(*told):
            for losses, _ in by_rank:
                self.assertEqual(losses, by_rank[0][0])
        return [tuple(it) for it in told[0]]

    def test_are_those_of_one_rank_in_every_stage_and_place(self):
        cases = [(place, stage) for stage in (0, 1, 2, 3) for place in ("cpu", "nvme")]
        cases += [(place, 3) for place in PLACES[2:]]
        got = self.run_ranks([{"last": STEPS, "place": it[0], "stage": it[1]} for it in cases])
        expected = alone(0, STEPS)
        for case, of_case in zip(cases, got, strict=True):
            self.assertEqual(of_case, expected, case)

    @unittest.skipIf(DEVICE == "cuda", "there may be two")
    def test_of_three_ranks_with_three_lanes(self):
        self.assertEqual(self.run_ranks([{"last": 2}], world=3), [alone(0, 2, lanes=3)])

    @unittest.skipIf(DEVICE == "cuda", "there may be two")
    def test_of_four_ranks_on_two_hosts(self):
        got = self.run_ranks([{"last": 2}, {"last": 2, "place": "nvme", "stage": 1}], 4, 2)
        self.assertEqual(got, [alone(0, 2, lanes=4)] * 2)

    @unittest.skipIf(DEVICE == "cuda", "there may be two")
    def test_of_weights_in_8_bits_and_copies_on_hosts(self):
        int8 = {"weights": "int8"}
        expected = alone(0, STEPS, lanes=4, communication=int8)
        self.assertNotEqual(expected, alone(0, STEPS, lanes=4))
        ways = [
            {"communication": int8},
            {"communication": {**int8, "host_copy": "ram"}},
            {"communication": {**int8, "host_copy": "auto"}, "place": "nvme"},
        ]
        got = self.run_ranks([{"last": STEPS, **way} for way in ways], 4, 2)
        self.assertEqual(got, [expected] * 3)

    def test_resume_on_another_number_of_ranks(self):
        losses, weights = alone(0, STEPS)
        with tempfile.TemporaryDirectory() as folder:
            alone(0, 2, save=f"{folder}/one")
            rest = {"first": 2, "last": STEPS}
            got = self.run_ranks(
                [
                    {"last": 2, "save": f"{folder}/two"},
                    {**rest, "load": f"{folder}/one", "place": "nvme"},
                    {**rest, "load": f"{folder}/two", "place": "nvme"},
                ]
            )
            self.assertEqual(got[0][0], losses[:2])
            self.assertEqual(got[1:], [(losses[2:], weights)] * 2)
            self.assertEqual(alone(2, STEPS, load=f"{folder}/two"), (losses[2:], weights))


def by_units(case):
    """Two steps of a transformers module by native units, on all ranks or on one, then two more
    after a checkpoint. The micro-batches of a step are the same for any number of ranks."""
    import native_models  # imports transformers

    rank, world = sluice.ranks.rank(), sluice.ranks.world_size()
    name, accumulation, folder = case["model"], case["accumulation"], Path(case["folder"])
    noise = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1)
    model = native_models.make(name, **(noise if name == "gpt2" else {}))
    config = run_config(
        2 * accumulation // world,
        case["place"],
        folder,
        run={"lanes": 2},
        zero_optimization={"stage": case["stage"]},
        gradient_clipping=1.0,
    )
    with sluice.initialize(model, config, units="engine") as engine:

        def steps(first, last):
            losses = []
            for step in range(first, last):
                of_all = [{"input_ids": it, "labels": it} for it in batches(2 * accumulation, step)]
                size = len(of_all) // world
                losses += native_models.train(engine, of_all[rank * size : (rank + 1) * size])
            return losses

        if case["load"]:
            engine.load_checkpoint(case["load"])
            return [steps(2, 4), masters(engine)]
        losses = steps(0, 2)
        engine.save_checkpoint(folder / f"of_{world}")
        with torch.no_grad():
            tokens = batches(1, seed=9)[0]
            engine.eval()
            seen = engine(input_ids=tokens, labels=tokens).loss.item()
            words = engine.module.generate(tokens, max_new_tokens=4, do_sample=False)
            engine.train()
        parts = list(engine.module.parameters())
        with engine.gathered(parts[0], parts[5]):  # one of the embedding and one of a block
            sums = [parts[0].double().sum().item(), parts[5].double().sum().item()]
        losses += steps(2, 4)
        engine.save_weights(folder / "weights.safetensors")
        weights = hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest()
        return [losses, weights, words.tolist(), sums, round(seen, 5), engine.backend]


class ByUnits(unittest.TestCase):
    """units="engine" on several ranks."""

    def setUp(self):
        try:
            import native_models
        except ImportError as error:
            self.skipTest(str(error))
        if native_models.MISSING:
            self.skipTest(native_models.MISSING)

    def test_has_the_bits_of_one_process(self):
        with tempfile.TemporaryDirectory() as folder:
            shared = {"folder": folder, "load": None}
            cases = [
                {"model": "gpt2", "stage": 1, "accumulation": 1, "place": "cpu", **shared},
                {"model": "gpt2", "stage": 3, "accumulation": 2, "place": "nvme", **shared},
                {"model": "llama", "stage": 3, "accumulation": 1, "place": "cpu", **shared},
                {"model": "llama", "stage": 1, "accumulation": 2, "place": "cpu", **shared},
            ]
            expected = []
            for case in cases:
                expected.append(by_units(case))
                self.assertEqual(len(set(expected[-1][0])), 4)  # losses
            code = """
from ranks_test import *
for case in json.loads(os.environ["WHAT"]):
    told = by_units(case)
    sluice.ranks.join().all_gather("")  # before the other one writes the file again
    print("told: " + json.dumps(told), flush=True)
"""
            codes, texts = Ranks(code, WHAT=json.dumps(cases)).wait()
            self.assertEqual(codes, [0, 0], "\n".join(texts))
            for text in texts:
                told = [it for it in text.splitlines() if it.startswith("told: ")]
                got = [json.loads(it.removeprefix("told: ")) for it in told]
                self.assertEqual(got, expected)
            again = by_units({**cases[-1], "load": f"{folder}/of_2"})
            self.assertEqual(again, [expected[-1][0][2:], expected[-1][1]])

    def test_what_units_do_not_compute_ends_all(self):
        codes, texts = Ranks(
            """
import native_models
rank = int(os.environ["RANK"])
auto = sluice.initialize(native_models.make("gpt2"), run_config())
assert auto.backend == "hooks" and 'units="engine"' in auto.backend_reason, auto.backend_reason
auto.close()
engine = sluice.initialize(native_models.make("gpt2"), run_config(), units="engine")
tokens = batches(1)[0]
batch = {"input_ids": tokens, "labels": tokens}
if rank == 1:
    batch["position_ids"] = torch.arange(3, 15).expand(2, -1)
engine.backward(engine(**batch).loss)
engine.step()
"""
        ).wait()
        self.assertEqual(codes, [1, 1], texts)
        self.assertIn("rank 1: RefusedError", texts[0])
        self.assertIn("position_ids", texts[1])


class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(24))

    def forward(self, x):
        for block in self.blocks:
            x = torch.nn.functional.gelu(block(x))
        return x.square().mean()


def planned(drive, gib):
    """Losses, bytes by tier and the predicted time of a module that the planner places, with `gib`
    of RAM for both ranks; without `gib`, in RAM."""
    config = run_config(data={"sequence_length": 1})
    if gib:
        config["budget"] = {"nvme_paths": [drive], "cpu_gib": gib}
        for part in ("offload_param", "offload_optimizer"):
            config["zero_optimization"][part] = {"device": "auto"}
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))
    x = torch.randn(2, 1024, generator=generator)
    with sluice.initialize(Wide(), config) as engine:
        losses = []
        for _ in range(2):
            engine.backward(engine(x))
            losses.append(engine.step().loss)
        memory = {tier: dict(lines) for tier, lines in engine.memory.items()}
        return losses, memory, engine.predicted_step_s


@unittest.skipIf(DEVICE == "cuda", "its numbers are those of CPUs, which have gradients on drives")
class Planner(unittest.TestCase):
    """The first rank calls the planner, with each rank's share of the host's memory."""

    def test_puts_on_the_drive_what_ram_has_no_room_for(self):
        with tempfile.TemporaryDirectory() as drive:
            codes, texts = Ranks(
                f"""
from ranks_test import *
losses, literal, predicted = planned({drive!r}, None)
assert predicted is None
program = literal["host"]["the program and LibTorch"]
lean = 2 * (program + 300 * 2**20)
found, memory, predicted = planned({drive!r}, lean / 2**30)
assert found == losses, (found, losses)
assert memory["nvme"]["optimizer state"] > 50 * 2**20, memory
assert sum(memory["host"].values()) < lean / 2, memory
assert (predicted is None) == (os.environ["RANK"] == "1"), predicted
planned({drive!r}, program / 2**30)
""",
                XDG_CACHE_HOME=f"{drive}/cache",
            ).wait()
            self.assertEqual(codes, [1, 1], "\n".join(texts))
            refusal = r"for each of 2 ranks: .*It would fit with budget.cpu_gib 2\.[01]"
            self.assertRegex(texts[0], refusal)
            self.assertRegex(texts[1], "rank 0 .*" + refusal)


if __name__ == "__main__":
    unittest.main()
