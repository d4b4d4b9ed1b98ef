"""sluice-log while a run is trained: until it ends, with servers that are away, and interrupted."""

import fcntl
import json
import signal
import subprocess
import sys
import time
import unittest
from types import ModuleType, SimpleNamespace
from unittest import mock

from sluice_log_runs import RunFolder

# The part of wandb that sluice-log uses, with a server that is available once a file exists. "sent"
# has the configuration, and then the logged values.
FAKE_WANDB = """
import json, os, types

class CommError(Exception):
    pass

errors = types.SimpleNamespace(CommError=CommError)

def Settings(**_):
    return None

class Run:
    summary = {}

    def define_metric(self, *_, **__):
        pass

    def log(self, values, step):
        with open("sent", "a") as file:
            file.write(json.dumps(values) + "\\n")

    def finish(self, **_):
        pass

def init(config, **_):
    if not os.path.exists("is-up"):
        raise CommError("connection refused")
    Run().log(config, 0)
    return Run()
"""


class FailingServer:
    """MLflow's client with a server that accepts runs but no parameters."""

    def __init__(self):
        self.runs = []

    def get_experiment_by_name(self, _name):
        return SimpleNamespace(experiment_id="1")

    def search_runs(self, *_which, max_results):
        return [SimpleNamespace(info=SimpleNamespace(run_id=number),
                                data=SimpleNamespace(tags=tags))
                for number, tags in enumerate(self.runs)][-max_results:]

    def create_run(self, _experiment, tags, run_name):
        self.runs.append(dict(tags))
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.runs) - 1))

    def log_batch(self, *_batch, **_more):
        raise MlflowError("413 Request Entity Too Large")

    def set_tag(self, run, key, value):
        self.runs[run][key] = value


class MlflowError(Exception):
    pass


class Retries(unittest.TestCase):
    def test_of_a_beginning_make_one_run(self):
        server = FailingServer()
        contents = {
            "mlflow": {},
            "mlflow.entities": {"Metric": tuple, "Param": lambda *it: it},
            "mlflow.exceptions": {"MlflowException": MlflowError},
            "mlflow.tracking": {"MlflowClient": lambda _uri: server},
        }
        modules = {name: ModuleType(name) for name in contents}
        for name, values in contents.items():
            vars(modules[name]).update(values)
        with mock.patch.dict(sys.modules, modules):
            from sluice_log.mlflow import MlflowRun
            from sluice_log.outputs import Away

            output = MlflowRun("http://server")
            for _ in range(3):
                with self.assertRaises(Away):
                    output.open("identity", {"a": 1})
        self.assertEqual(len(server.runs), 1)


class Follow(RunFolder):
    def test_follows_a_run_through_parts_and_resumes_and_ends_with_it(self):
        logger = self.start("--csv", "csv")
        self.begin()
        self.steps(1, 3)
        self.until(lambda: len(self.rows()) == 3)
        self.steps(4, 5)
        (self.run / "metrics.jsonl").rename(self.run / "metrics.jsonl.1")
        self.steps(6, 7)
        self.until(lambda: len(self.rows()) == 7)
        self.event("end", 7, how="interrupted")
        self.assertEqual(logger.wait(30), 0, logger.stderr.read())
        self.cut(6)
        self.begin(6)
        logger = self.start("--csv", "csv")
        self.steps(7, 9, loss=0.5)
        self.until(lambda: len(self.rows()) == 9)
        self.cut(8)
        self.event("begin", 8)
        self.steps(9, 9, loss=0.25)
        self.until(lambda: self.rows()[-1] == (9, "0.25"))
        self.event("end", 9, how="completed")
        self.assertEqual(logger.wait(30), 0, logger.stderr.read())
        self.assertEqual([step for step, _ in self.rows()], list(range(1, 10)))

    def test_a_server_that_is_away_at_the_start_has_every_step_once_it_answers(self):
        (self.path / "fake").mkdir()
        (self.path / "fake/wandb.py").write_text(FAKE_WANDB, encoding="utf-8")
        environment = self.environment()
        environment["PYTHONPATH"] = str(self.path / "fake")
        self.environment = lambda: environment
        sent = self.path / "sent"

        def history():
            lines = sent.read_text(encoding="utf-8").splitlines() if sent.exists() else []
            return [json.loads(line) for line in lines]

        self.begin()
        self.steps(1, 3)
        self.assertIn("what is missing", self.log("--wandb", "p", code=1))
        logger = self.start("--wandb", "p", "--csv", "csv")
        self.until(lambda: len(self.rows()) == 3, "the other output does not wait")
        self.assertEqual(history(), [])
        self.steps(4, 4)
        self.event("checkpoint", 4, bytes=5)
        (self.path / "is-up").touch()
        self.until(lambda: len(history()) == 6, "it is not tried again")
        self.steps(5, 5)
        self.event("end", 5, how="completed")
        self.assertEqual(logger.wait(30), 0, logger.stderr.read())
        first, *others = history()
        self.assertEqual(first["optimizer.params.lr"], 0.001)
        steps = [(it["step"], it["progress/attempt"]) for it in others if "train/loss" in it]
        self.assertEqual(steps, [(step, 1) for step in range(1, 6)])
        self.assertEqual([it["checkpoint/bytes"] for it in others if "checkpoint/bytes" in it], [5])

    def test_ends_where_who_trained_is_gone(self):
        self.begin()
        self.steps(1, 3)
        (self.run / "lock").touch()
        with open(self.run / "lock", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            logger = self.start("--csv", "csv")
            self.until(lambda: len(self.rows()) == 3)
            time.sleep(1)
            self.assertIsNone(logger.poll())
        self.assertEqual(logger.wait(30), 0)
        self.assertRegex(logger.stderr.read(), "crashed:.*no end")

    def test_beside_a_run_it_ends_with_its_input_and_has_all(self):
        self.begin()
        logger = self.start("--csv", "csv", "--companion", stdin=subprocess.PIPE)
        self.steps(1, 3)
        self.until(lambda: len(self.rows()) == 3)
        self.steps(4, 6)
        logger.stdin.close()
        self.assertEqual(logger.wait(30), 0)
        self.assertEqual(len(self.rows()), 6)

    def test_an_interrupt_leaves_files_that_go_on(self):
        logger = self.start("--csv", "csv")  # only metrics
        for step in 1, 2, 3:
            self.steps(step, step)
            self.until(lambda wanted=step: len(self.rows()) == wanted)
            logger.send_signal(signal.SIGUSR1)  # meant for the run, and sent to all of its processes
        logger.send_signal(signal.SIGINT)
        self.assertEqual(logger.wait(30), 130)
        self.steps(4, 4)
        self.log("--csv", "csv")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
