"""Hugging Face's Trainer on several ranks, compared with one process and with the plain Trainer
under DistributedDataParallel; resuming on another number of ranks; and failures of one rank."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch

import sluice
import trainer_case
from rank_processes import FORKS, HERE, HUNG_S, Ranks, free_port
from sluice import ranks
from transformers_test import MISSING, make

if not MISSING:
    import transformers
    from transformers import TrainerCallback, TrainingArguments

    import sluice.transformers as by_sluice

STEPS = 12
TOLD = "told: "
SAVED = "checkpoint-5"
KEYS = {
    "zero_optimization": trainer_case.ZERO if not MISSING else {},
    "train_batch_size": "auto",
    "run": {"lanes": 2},
}


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def trainer(out, kind=None, model=None, name="gpt2", arguments=None, keys=None, **more):
    """A Trainer on each rank; together they take two micro-batches per step."""
    world = ranks.world_size()
    kind = kind or by_sluice.Trainer
    if issubclass(kind, by_sluice.TrainerMixin):
        more = {"sluice": keys or KEYS, "units": "hooks", **more}
    made = kind(
        model=model or make(name),
        args=(arguments or TrainingArguments)(
            **{
                "output_dir": str(out),
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 2 // world,
                "max_steps": STEPS,
                "learning_rate": 1e-3,
                "logging_steps": 1,
                "save_strategy": "steps",
                "save_steps": 5,
                "report_to": [],
                "disable_tqdm": True,
                "use_cpu": True,
                "seed": 5,
                **more.pop("args", {}),
            }
        ),
        train_dataset=more.pop("rows", None) or trainer_case.Rows(name, 20),
        eval_dataset=trainer_case.Rows(name, 11, seed=2),
        **more,
    )
    made.pop_callback(transformers.PrinterCallback)
    return made


def told(one):
    """The compared values, once the engine is closed: losses, their norms, and the weights'
    bits."""
    weights = hashlib.sha256()
    for value in one.model.state_dict().values():
        weights.update(value.numpy().tobytes())
    one.engine.close()
    return [
        trainer_case.logged(one),
        trainer_case.logged(one, "grad_norm"),
        weights.hexdigest(),
    ]


def trained(out, resume=None, **options):
    one = trainer(out, **options)
    one.train(resume_from_checkpoint=resume)
    return told(one)


def accumulated(out):
    """Several micro-batches per rank, with noise, by native units."""
    return trained(
        out,
        model=trainer_case.noisy_gpt2(),
        keys={**KEYS, "run": {"lanes": 2, "rounds": 2}},
        units="engine",
        args={"gradient_accumulation_steps": 4 // ranks.world_size(), "max_steps": 4},
    )


def tell(*values):
    print(TOLD + json.dumps(values), flush=True)


FORKS.set_forkserver_preload(["sluice", "trainer_ranks_test"])


@unittest.skipIf(MISSING, MISSING)
class RanksCase(unittest.TestCase):
    def setUp(self):
        quiet()
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def run_ranks(self, code, codes=(0, 0)):
        """The output and the messages of each rank."""
        code = f"from trainer_ranks_test import *\nquiet()\nfolder = {str(self.folder)!r}\n{code}"
        got, texts = Ranks(code).wait()
        self.assertEqual(got, list(codes), "\n".join(texts))
        return texts

    def told_by(self, code):
        """The values that the ranks print with tell(); they have to agree."""
        texts = self.run_ranks(code)
        lines = [[it for it in text.splitlines() if it.startswith(TOLD)] for text in texts]
        self.assertEqual(lines[0], lines[1], texts)
        return [json.loads(it.removeprefix(TOLD)) for it in lines[0]]


class Bits(RanksCase):
    def test_of_one_process_and_resumed_on_another_number(self):
        whole = trained(self.folder / "one")
        *others, dealt = self.told_by(
            """
saved = f"{folder}/one/{SAVED}"
tell(trained(f"{folder}/two"))
tell(trained(f"{folder}/rest", saved, keys={**KEYS, "zero_optimization": {"stage": 1}}))
tell(accumulated(f"{folder}/dealt"))
"""
        )
        self.assertEqual(others, [[whole], [whole]])
        two = self.folder / "two" / SAVED
        self.assertEqual(trained(self.folder / "rest_alone", str(two)), whole)
        self.assertEqual(
            sorted(it.name for it in two.iterdir() if it.suffix != ".json"),
            ["model.safetensors", "rng_state_0.pth", "rng_state_1.pth", "sluice"]
            + ["training_args.bin"],
        )
        files = [self.folder / it / SAVED / "model.safetensors" for it in ("one", "two")]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())
        state = json.loads((two / "trainer_state.json").read_text())
        self.assertEqual(len(state["log_history"]), 5)
        losses, _, weights = accumulated(self.folder / "dealt_alone")
        self.assertEqual(dealt[0][2], weights)
        for own, other in zip(losses, dealt[0][0], strict=True):  # added in another order
            self.assertAlmostEqual(own, other, delta=1e-6)

    def test_beside_the_plain_trainer_with_evaluation_and_the_best_model(self):
        """Parameters begin with other values on each rank, like a new head without a seed."""
        (ours, theirs, written) = self.told_by(
            """
def evaluated(kind, out):
    torch.manual_seed(3 + int(os.environ["RANK"]))
    model = transformers.AutoModelForSequenceClassification.from_config(make("distilbert").config)
    embedding = model.distilbert.embeddings.word_embeddings.weight.data  # other in its middle alone
    embedding.copy_(torch.arange(embedding.numel()).reshape(embedding.shape) % 7 / 100)
    embedding[embedding.shape[0] // 2] += 0.01 * int(os.environ["RANK"])
    one = trainer(out, kind, model, "distilbert", compute_metrics=lambda it: {
        "rows": len(it.label_ids), "sum": float(it.predictions.sum())}, args={
        "eval_strategy": "steps", "eval_steps": 5, "load_best_model_at_end": True,
        "metric_for_best_model": "loss", "greater_is_better": True, "save_total_limit": 1,
        "per_device_eval_batch_size": 2, "gradient_accumulation_steps": 3})
    one.train()
    assert one.state.best_model_checkpoint.endswith(SAVED), one.state.best_model_checkpoint
    best = one.evaluate()
    one.save_model(f"{out}/model")
    logged = [trainer_case.logged(one, it) for it in ("loss", "eval_loss", "eval_rows", "eval_sum")]
    return one, [*logged, best["eval_loss"]]

ours, values = evaluated(by_sluice.Trainer, f"{folder}/ours")
tell(values)
weights = ours.model.state_dict()
ours.engine.close()
tell(evaluated(transformers.Trainer, f"{folder}/theirs")[1])
again = type(ours.model).from_pretrained(f"{folder}/ours/model").state_dict()
tell(all(torch.equal(it, again[name]) for name, it in weights.items()), len(again))
"""
        )
        (ours, theirs) = (it[0] for it in (ours, theirs))
        self.assertEqual(ours[2], [11] * 4)  # each row once, from both ranks' predictions
        for one, other in zip(ours[:2] + [ours[3], [ours[4]]], theirs[:2] + [theirs[3], [theirs[4]]]):
            for number, (value, expected) in enumerate(zip(one, other, strict=True)):
                self.assertAlmostEqual(value, expected, delta=1e-5, msg=str(number))
        self.assertTrue(written[0])
        names = sorted(it.name for it in (self.folder / "ours").iterdir())
        self.assertEqual(names, [SAVED, "model"])


class Uses(RanksCase):
    def test_generation_whose_ranks_end_at_other_lengths_and_training_again(self):
        code = """
class Stops(transformers.StoppingCriteria):
    def __init__(self):
        self.row = ranks.rank() - ranks.world_size()
    def __call__(self, tokens, scores, **_):
        if tokens.shape[1] == 2:
            self.row += ranks.world_size()
        return torch.full((len(tokens),), tokens.shape[1] >= (4, 9)[self.row % 2])

def predicted():
    one = trainer(f"{folder}/s", by_sluice.Seq2SeqTrainer, None, "blenderbot",
        arguments=transformers.Seq2SeqTrainingArguments, args={
        "predict_with_generate": True, "max_steps": 3, "save_steps": 2,
        "per_device_eval_batch_size": 1})
    one.train()
    rows = one.predict(trainer_case.Rows("blenderbot", 6, seed=4), max_length=12,
        stopping_criteria=[Stops()]).predictions
    rows = [[token for token in it if token not in (0, -100)] for it in rows.tolist()]
    assert len({len(it) for it in rows}) == 2, rows
    losses = trainer_case.logged(one)
    one.train(resume_from_checkpoint=f"{folder}/s/checkpoint-2")
    assert trainer_case.logged(one) == losses
    one.engine.close()
    return rows, losses
"""
        scope = dict(globals(), folder=str(self.folder / "alone"))
        exec(code, scope)
        alone = scope["predicted"]()
        self.assertEqual(self.told_by(code + "tell(predicted())"), [[list(alone)]])

    def test_saves_where_only_the_rank_that_writes_comes_to_it(self):
        """Before 5.20, transformers called it on one rank only; the parameters are gathered
        anyway."""
        code = """
def save_model(self, output_dir=None, _internal_call=False):
    if self.args.should_save:
        self._save(output_dir)
transformers.Trainer.save_model = save_model
tell(trained(f"{folder}/two", args={"max_steps": 5}))
"""
        whole = trained(self.folder / "one", args={"max_steps": 5})
        self.assertEqual(self.told_by(code), [[whole]])
        files = [self.folder / it / SAVED / "model.safetensors" for it in ("one", "two")]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_under_torchrun_and_mpirun(self):
        script = self.folder / "script.py"
        script.write_text(
            f"""
import sys
sys.path.insert(0, {HERE!r})
from trainer_ranks_test import *
quiet()
seen = []
class Watch(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        seen.append(state.is_world_process_zero)
one = trainer(sys.argv[1], args={{"max_steps": 2, "save_strategy": "no"}}, callbacks=[Watch()])
one.train()
assert set(seen) == {{one.engine.rank == 0}}, seen
assert one.engine.world_size == 2 and one.engine.config["train_batch_size"] == 4
if one.engine.rank == 0:
    tell(trainer_case.logged(one))
torch.distributed.destroy_process_group()  # left to the exit, gloo may abort, the plain Trainer's too
""",
            encoding="utf-8",
        )
        torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--nproc-per-node=2"]
        port = f"--master-port={free_port()}"
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
        expected = trained(self.folder / "one", args={"max_steps": 2, "save_strategy": "no"})[0]
        for command in ([*torchrun, port], mpirun):
            try:
                done = subprocess.run(
                    [*command, str(script), str(self.folder / "out")],
                    env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())},
                    capture_output=True,
                    text=True,
                    timeout=HUNG_S,
                    check=False,
                )
            except FileNotFoundError:
                self.assertEqual(command[0], "mpirun")  # mpirun is optional
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(TOLD + json.dumps([expected]), done.stdout)

    def test_what_is_refused_changes_nothing_and_what_fails_on_one_rank_ends_all(self):
        texts = self.run_ranks(
            """
check = unittest.TestCase()
def refused(sentence, **options):
    model = make("gpt2")
    with check.assertRaisesRegex(sluice.RefusedError, sentence):
        trainer(f"{folder}/out", model=model, **options).train()
    model(input_ids=torch.ones(1, 3, dtype=torch.long)).logits.sum().backward()  # as it was

refused("even_batches", args={"accelerator_config": {"even_batches": False}})
refused("save_on_each_node", args={"save_on_each_node": True})
refused("train_batch_size is 2 in the configuration, but .* x 2 ranks is 4",
        keys={**KEYS, "train_batch_size": 2})
refused("run.lanes 3 cannot be divided", keys={**KEYS, "run": {"lanes": 3}})
if not torch.cuda.is_available():
    refused("started 2 processes.* use_cpu=True", args={"use_cpu": False, "gradient_accumulation_steps": 2})
again = trainer(f"{folder}/out", args={"max_steps": 1})  # and the ranks can go on
again.train()
with check.assertRaisesRegex(sluice.RefusedError, "would continue AdamW's moments"):
    again.train()
assert again.evaluate()["eval_loss"] > 0
again.engine.close()

class Failing(trainer_case.Rows):
    def __getitem__(self, number):
        if number == 7 and ranks.rank() == 1:
            raise LookupError("row 7 is no good")
        return super().__getitem__(number)
trainer(f"{folder}/out", rows=Failing("gpt2", 20)).train()
""",
            codes=(1, 1),
        )
        self.assertIn("LookupError: row 7 is no good", texts[1])
        self.assertIn("sluice.Error: rank 1 ", texts[0])  # it was waiting in torch.distributed
        self.assertIn("rank 1: LookupError: row 7 is no good", texts[0])


if __name__ == "__main__":
    sys.exit(unittest.main())
