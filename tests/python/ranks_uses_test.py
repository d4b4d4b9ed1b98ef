"""What scripts do with the package sluice on several ranks: DeepSpeed's names, other values, and
failures and disagreements between ranks."""

import json
import signal
import tempfile
import unittest
from pathlib import Path

from rank_processes import Ranks


class Uses(unittest.TestCase):
    def check(self, code, *sentences, codes=None):
        got, texts = Ranks(code).wait()
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

    def test_save_in_the_background_while_they_train(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                f"""
rank = int(os.environ["RANK"])
def files(path):
    # checkpoint.json has when it was written.
    return {{it: open(path + "/" + it, "rb").read() for it in os.listdir(path) if "tensors" in it}}
module = tower()
with sluice.initialize(module, run_config(run={{"lanes": 2}}), run_dir={folder!r}) as engine:
    train(engine, batches(2, seed=rank))
    at_once = files(engine.save_checkpoint({folder!r} + "/first", background=False))
    path = engine.save_checkpoint(background=True)
    train(engine, batches(2, seed=5 + rank))
    engine.wait()
    assert files(path) == at_once, path
    before = [it.detach().clone() for it in engine.module.state_dict().values()]
    engine.load_checkpoint(path)
    train(engine, batches(2, seed=5 + rank))
    assert all(torch.equal(*both) for both in zip(before, engine.module.state_dict().values()))
    later = engine.save_checkpoint(background=True)
assert os.path.exists(later + "/checkpoint.json"), os.listdir(later)  # after close()
"""
            )
            events = (Path(folder) / "events.jsonl").read_text().splitlines()
            steps = [it["step"] for it in map(json.loads, events) if it["event"] == "checkpoint"]
            self.assertEqual(steps, [2, 2, 4])

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
        codes, texts = ranks.wait()
        self.assertEqual(codes, [1, -signal.SIGKILL], texts)
        self.assertRegex(texts[0], "rank 1 .*(gone|ended|closed|connection)")


if __name__ == "__main__":
    unittest.main()
