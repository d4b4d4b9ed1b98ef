"""The package sluice on several ranks, started like torchrun does: the bits of one rank, and
failures and disagreements between ranks."""

import atexit
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import torch  # noqa: F401: used by ranks

import sluice  # noqa: F401: used by ranks
from small_modules import (  # noqa: F401: used by ranks
    DEVICE,
    PLACES,
    batches,
    initialize,
    masters,
    run_config,
    tower,
    train,
)

STEPS = 4
HERE = str(Path(__file__).resolve().parent)


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


# Ranks are forked from one process that has imported PyTorch, because the import takes seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["sluice", "small_modules"])


def be_a_rank(code, variables, outputs):
    for stream, path in zip((1, 2), outputs):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), stream)
    os.environ.update(variables)
    sys.path.insert(0, HERE)
    try:
        exec(compile(f"from ranks_test import *\n{code}", "rank", "exec"), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call them


class Ranks:
    """Processes that run `code` with RANK and the other variables; their outputs, by rank."""

    def __init__(self, code, world=2, **variables):
        port = str(free_port())
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self.outputs = [[f"{self.folder.name}/{name}{rank}" for name in ("out", "err")]
                        for rank in range(world)]
        self.processes = []
        for rank in range(world):
            places = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            arguments = (code, {**os.environ, **places, **variables}, self.outputs[rank])
            self.processes.append(FORKS.Process(target=be_a_rank, args=arguments))
            self.processes[-1].start()

    def wait(self, seconds=90):
        """Exit codes, and the outputs followed by the errors."""
        deadline = time.monotonic() + seconds
        try:
            for it in self.processes:
                it.join(max(1, deadline - time.monotonic()))
                if it.exitcode is None:
                    raise subprocess.TimeoutExpired("a rank", seconds)
        finally:
            for it in self.processes:
                it.kill()
        texts = ["".join(Path(path).read_text(encoding="utf-8") for path in outputs)
                 for outputs in self.outputs]
        self.folder.cleanup()
        return [it.exitcode for it in self.processes], texts


def of_steps(first, last, world, rank):
    """A rank's micro-batches, one per step."""
    return [batches(world, seed=step)[rank] for step in range(first, last)]


def start(world, place="cpu", drive=None, stage=3, lanes=2, **more):
    """An engine of one of `world` ranks, which together have `lanes` micro-batches per step."""
    return initialize(
        tower(tied=False, dropout=0.0),
        accumulation=lanes // world,
        place=place,
        drive=drive,
        gradient_clipping=1.0,
        run={"lanes": lanes},
        zero_optimization={"stage": stage},
        **more,
    )


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
    with start(world, case["place"], drive, case["stage"], lanes=max(world, 2)) as engine:
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
    def run_ranks(self, cases, world=2):
        """Losses and hashes by case."""
        defaults = {"first": 0, "place": "cpu", "stage": 3, "load": None, "save": None}
        code = 'for case in json.loads(os.environ["WHAT"]): among_ranks(case)'
        with tempfile.TemporaryDirectory() as drive:
            what = json.dumps([{**defaults, **case, "drive": drive} for case in cases])
            codes, texts = Ranks(code, world, WHAT=what).wait()
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
        ).wait(60)
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


class Uses(unittest.TestCase):
    def check(self, code, *sentences, seconds=60, codes=None):
        began = time.monotonic()
        got, texts = Ranks(code).wait(seconds)
        self.assertLess(time.monotonic() - began, seconds)
        self.assertEqual(got, codes or [0, 0], "\n".join(texts))
        for rank, sentence in enumerate(sentences):
            self.assertRegex(texts[rank], sentence)
        return texts

    def test_deepspeeds_names_evaluation_and_state_dict(self):
        with tempfile.TemporaryDirectory() as folder:
            texts = self.check(
                f"""
import sluice.deepspeed as deepspeed
deepspeed.init_distributed()
assert deepspeed.comm.get_world_size() == 2
data = [row for step in range(4) for batch in batches(2, seed=step) for row in batch]
engine, _, loader, _ = deepspeed.initialize(
    model=tower(), config=run_config(run={{"lanes": 2}}), training_data=data)
assert engine.global_rank == deepspeed.comm.get_rank() == int(os.environ["RANK"])
torch.set_default_device("cpu")  # where samplers draw
seen = 0
for tokens in loader:
    engine.backward(engine(tokens))
    engine.step()
    seen += len(tokens)
assert seen == len(data) // 2, seen
torch.set_default_device(DEVICE)
engine.save_checkpoint({folder!r}, client_state={{"epoch": 3}})
engine.save_16bit_model({folder!r})
path, state = engine.load_checkpoint({folder!r})
assert state == {{"epoch": 3}}, state
with torch.no_grad():
    loss = engine(batches(1, seed=9)[0]).item()
state = engine.module.state_dict()
saved = torch.load({folder!r} + "/pytorch_model.bin")
assert all(torch.equal(saved[name], value) for name, value in state.items())
print(loss, float(sum(it.double().sum() for it in state.values())))
print(sorted(os.listdir({folder!r})))
"""
            )
            self.assertEqual(texts[0].splitlines()[:2], texts[1].splitlines()[:2])
            self.assertIn("['global_step4', 'latest', 'pytorch_model.bin']", texts[0])

    def test_a_runs_folder_frozen_parameters_and_an_epochs_last_step(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                f"""
rank = int(os.environ["RANK"])
module = tower(tied=False)
module.blocks[1].requires_grad_(False)
config = run_config(accumulation=2, run={{"lanes": 2, "checkpoint_background": True}})
with sluice.initialize(module, config, run_dir={folder!r}) as engine:
    train(engine, batches(4, seed=rank))
    engine.backward(engine(batches(1, seed=9)[0]))
    assert engine.step(is_last=True).step == 3
    path = engine.save_checkpoint()
    train(engine, batches(2, seed=rank))
    engine.load_checkpoint(path)
    assert engine.global_step == 3
    train(engine, batches(2, seed=rank))
"""
            )
            lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
            self.assertEqual([json.loads(it)["step"] for it in lines], [1, 2, 3, 4])

    def test_a_script_that_fails_on_one_rank_ends_all(self):
        self.check(
            """
with start(2) as engine:
    train(engine, of_steps(0, 1, 2, engine.rank))
    if engine.rank == 0:
        raise LookupError("no more data")
    train(engine, of_steps(1, 9, 2, engine.rank))
""",
            "LookupError: no more data",
            "rank 0: LookupError: no more data",
            seconds=30,
            codes=[1, 1],
        )

    def test_what_ranks_have_to_have_alike_is_compared(self):
        self.check(
            """
rank = int(os.environ["RANK"])
for module, options, sentence in (
    (tower(), {"gradient_clipping": 1.0 + rank},
     "configuration differs between rank 0 and rank 1: gradient_clipping is 1.0 on rank 0, and 2.0"),
    (tower(blocks=3 + rank), {},
     "parameters differ between rank 0 and rank 1: blocks.3.norm.weight is missing on rank 0"),
):
    with unittest.TestCase().assertRaisesRegex(sluice.RefusedError, sentence):
        initialize(module, **options)
with initialize(tower(), run={"lanes": 2}) as engine:  # and they can go on
    train(engine, batches(1, seed=rank))
"""
        )

    def test_gather_more_than_there_is_room_for_or_refuse_together(self):
        self.check(
            """
from unittest import mock
rank = int(os.environ["RANK"])
with initialize(tower(blocks=5), run={"lanes": 2}) as engine:
    everything = list(engine.module.parameters())
    with engine.gathered(*everything):
        first = [it.detach().clone() for it in everything]
    assert all(torch.equal(it, other) for it, other in zip(first, tower(blocks=5).parameters()))
    free = 10 if rank == 1 else 10**12
    with mock.patch("sluice._residency._free_bytes", return_value=free):
        with unittest.TestCase().assertRaisesRegex(sluice.Error, "of fewer modules at a time"):
            engine.gathered(*everything).__enter__()
    train(engine, batches(1, seed=rank))
"""
        )

    def test_other_values_become_the_first_ranks(self):
        self.check(
            """
rank = int(os.environ["RANK"])
expected = {name: value.clone() for name, value in tower(seed=1).state_dict().items()}
module = tower(seed=1 + rank)
module.register_buffer("scale", torch.arange(3) + rank)
module.register_buffer("own", torch.zeros(1 + rank))
with initialize(module, run={"lanes": 2}) as engine:
    state = engine.module.state_dict()
    assert all(torch.equal(state[name].cpu(), value.cpu()) for name, value in expected.items())
    assert engine.module.scale.tolist() == [0, 1, 2]
    assert engine.module.own.tolist() == [0] * (1 + rank)
    train(engine, batches(1, seed=rank))
""",
            "differed between ranks; all ranks now use rank 0's values .*embedding.weight",
        )

    def test_buffers_of_every_form_become_the_first_ranks(self):
        self.check(
            """
def forms(rank):
    numbers = torch.arange(6.0).reshape(2, 3) + rank
    one = torch.full((1, 1), 1.0 + rank)
    turned = torch.polar(torch.ones(3), torch.arange(3.0) + rank)
    return {
        "flag": torch.tensor(rank == 0),
        "count": torch.tensor(5 + rank),
        "mask": torch.tensor([True, rank == 0]),
        "turned": turned,
        "conjugate": turned.conj(),
        "imaginary": turned.conj().imag,
        "scattered": numbers.t(),
        "every_second": numbers[:, ::2],
        "one": one,
        "repeated": one.expand(4, 3),
        "rounded": numbers.bfloat16(),
        "nothing": torch.zeros(0, 3),
        "sparse": torch.eye(2).to_sparse(),
    }


module, rank = tower(), int(os.environ["RANK"])
for name, value in forms(rank).items():
    module.register_buffer(name, value, persistent=False)
norm = module.blocks[0].extra = torch.nn.BatchNorm1d(3)
norm.running_mean += rank
norm.num_batches_tracked += rank
with initialize(module, run={"lanes": 2}) as engine:
    for name, value in forms(0).items():
        now = getattr(module, name)
        assert torch.equal(now.cpu().to_dense(), value.cpu().to_dense()), (name, now)
    if DEVICE == "cpu":  # what moves to another GPU is moved apart, as by module.to()
        module.one.add_(1)  # repeated is it still
        assert module.repeated.tolist() == [[2.0] * 3] * 4
    assert norm.running_mean.tolist() == [0] * 3 and norm.num_batches_tracked == 0
    train(engine, batches(1, seed=rank))
""",
            "13 tensors of the module differed between ranks; all ranks now use rank 0's values",
        )

    def test_a_value_in_the_middle_becomes_the_first_ranks(self):
        self.check(
            """
rank = int(os.environ["RANK"])
module = torch.nn.Linear(100, 50, bias=False)
torch.nn.init.ones_(module.weight)
with torch.no_grad():
    module.weight[25, 50] += rank
with initialize(module, run={"lanes": 2}) as engine:
    assert (engine.module.state_dict()["weight"] == 1).all()
""",
            "differed between ranks; all ranks now use rank 0.s values .weight",
        )

    def test_values_on_one_rank_alone_are_refused(self):
        self.check(
            """
rank = int(os.environ["RANK"])
config = run_config(run={"lanes": 2})
with sluice.init(config, values=rank == 1):
    module = tower()
with unittest.TestCase().assertRaisesRegex(sluice.RefusedError, "values=False.* rank 0 and rank 1"):
    sluice.initialize(module, config)
"""
        )

    def test_half_of_a_launchers_variables_are_refused(self):
        self.check(
            """
for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    del os.environ[name]
with unittest.TestCase().assertRaisesRegex(sluice.RefusedError, "WORLD_SIZE"):
    initialize(tower())
"""
        )

    def test_another_order_of_units_is_found_before_any_weight_changes(self):
        self.check(
            """
module = tower(tied=False)
if int(os.environ["RANK"]) == 1:
    order = list(reversed(module.blocks))
    hidden = lambda it: module.norm(torch.nn.Sequential(*order)(module.embedding(it)))
    module.hidden = hidden
with initialize(module, run={"lanes": 2}) as engine:
    train(engine, batches(1))
""",
            "rank 1 used other units of the module",
            "rank 1 used other units of the module|ended|gone",
            codes=[1, 1],
        )

    def test_an_exception_on_one_rank_ends_all_with_its_name(self):
        self.check(
            """
with start(2) as engine:
    train(engine, of_steps(0, 2, 2, engine.rank))
    if engine.rank == 1:
        engine.module.blocks[2].register_forward_pre_hook(lambda *_: 1 / 0)
    train(engine, of_steps(2, 9, 2, engine.rank))
""",
            "rank 1.*ZeroDivisionError",
            "ZeroDivisionError",
            seconds=30,
            codes=[1, 1],
        )

    def test_a_killed_rank_ends_all(self):
        ranks = Ranks(
            """
with start(2) as engine:
    train(engine, of_steps(0, 2, 2, engine.rank))
    if engine.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    train(engine, of_steps(2, 9, 2, engine.rank))
"""
        )
        codes, texts = ranks.wait(30)
        self.assertEqual(codes, [1, -signal.SIGKILL], texts)
        self.assertRegex(texts[0], "rank 1 .*(gone|ended|closed|connection)")


if __name__ == "__main__":
    unittest.main()
