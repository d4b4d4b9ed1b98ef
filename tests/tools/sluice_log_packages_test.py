"""sluice-log: a run in TensorBoard, Weights & Biases and MLflow, read back."""

import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import unittest
import unittest.mock
import urllib.request

from sluice_log_runs import RunFolder, has, reference_packages

reference_packages.use("server")


@unittest.skipUnless(has("tensorboard", "numpy"), "the package tensorboard is not there")
class TensorBoard(RunFolder):
    def read(self, folder="tb"):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(self.path / folder), size_guidance={"scalars": 0,
                                                                         "tensors": 0})
        found.Reload()
        return found

    def losses(self, folder="tb", tag="train/loss"):
        return [(event.step, event.value) for event in self.read(folder).Scalars(tag)]

    def test_has_what_the_run_wrote(self):
        self.begin()
        self.steps(1, 9)
        self.steps(10, 10, loss=float("inf"), val_loss=4.5, we_ird=3)
        self.event("warning", 10, text="hot \ud800")
        self.event("end", 10, how="completed")
        self.log("--tensorboard", "tb")
        found = self.read()
        losses = found.Scalars("train/loss")
        self.assertEqual([event.step for event in losses], list(range(1, 11)))
        self.assertAlmostEqual(losses[2].value, 8 / 3, 6)
        self.assertEqual(losses[0].wall_time, 1_700_000_002)
        self.assertEqual(losses[-1].value, math.inf)
        self.assertEqual([event.step for event in found.Scalars("validation/loss")], [10])
        for tag, value in (("speed/tokens_per_second", 500), ("memory/gpu_bytes", 4096),
                           ("progress/tokens", 10_000), ("other/we_ird", 3)):
            self.assertEqual(found.Scalars(tag)[-1].value, value)
        self.assertEqual([event.step for event in self.read("tb/by_tokens").Scalars(
            "by_tokens/train/loss")], list(range(1000, 10_001, 1000)))
        texts = found.Tensors("events/warning")[0].tensor_proto.string_val
        self.assertEqual([text.decode() for text in texts], ["hot ?"])
        from tensorboard.plugins.hparams import plugin_data_pb2

        data = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        hparams = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
        self.assertEqual(hparams["optimizer.params.lr"].number_value, 0.001)
        self.assertEqual(hparams["run.model.family"].string_value, "gpt2")

    def test_has_no_step_twice(self):
        self.begin()
        self.steps(1, 5)
        self.log("--tensorboard", "tb")
        self.log("--tensorboard", "tb")
        self.steps(6, 8)
        self.log("--tensorboard", "tb")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))
        # A logger that was killed before it saved its position.
        state = json.loads((self.path / "tb/sluice-log.json").read_text())
        state.update(step=5, unix_s=json.loads((self.run / "metrics.jsonl").read_text(
            ).splitlines()[4])["unix_s"], tokens=5000)
        (self.path / "tb/sluice-log.json").write_text(json.dumps(state))
        self.log("--tensorboard", "tb")
        self.assertEqual([step for step, _ in self.losses()], list(range(1, 9)))
        self.assertEqual([step for step, _ in self.losses("tb/by_tokens", "by_tokens/train/loss")],
                         list(range(1000, 8001, 1000)))

    def test_steps_that_were_trained_again_replace_the_earlier_ones(self):
        self.begin()
        self.steps(1, 9)
        self.log("--tensorboard", "tb")
        self.cut(4)
        self.begin(4)
        self.steps(5, 7, loss=0.5)
        self.log("--tensorboard", "tb")
        wanted = [(step, 8 / step) for step in range(1, 5)] + [(5, 0.5), (6, 0.5), (7, 0.5)]
        for found, factor in ((self.losses(), 1),
                              (self.losses("tb/by_tokens", "by_tokens/train/loss"), 1000)):
            self.assertEqual([step for step, _ in found], [factor * step for step, _ in wanted])
            for (_, loss), (_, expected) in zip(found, wanted):
                self.assertAlmostEqual(loss, expected, 6)


def log_records(raw):
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format, in blocks of 32
    KiB. A record may consist of several pieces."""
    assert raw[:4] == b":W&B"
    at, begun = 7, b""
    while at + 7 <= len(raw):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", raw, at + 4)
        if kind == 0:
            break
        begun += raw[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield begun
            begun = b""


@unittest.skipUnless(has("wandb"), "the package wandb is not there")
class Wandb(RunFolder):
    def history(self):
        """(internal step, values) of all offline runs, as `wandb sync` would send them."""
        from wandb.proto import wandb_internal_pb2

        found, ids, config = [], set(), {}
        for path in sorted((self.run / "wandb").glob("offline-run-*/*.wandb")):
            for data in log_records(path.read_bytes()):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(data)
                if record.WhichOneof("record_type") == "history":
                    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json)
                              for item in record.history.item}
                    found.append((record.history.step.num, values))
                if record.WhichOneof("record_type") == "run":
                    ids.add(record.run.run_id)
                    config.update({item.key: json.loads(item.value_json)
                                   for item in record.run.config.update})
        return found, ids, config

    def test_has_each_step_once_under_one_run_and_marks_those_trained_again(self):
        self.begin()
        self.steps(1, 4)
        self.log("--wandb", "project", "--wandb-offline")
        self.cut(3)
        self.begin(3)
        self.steps(4, 4, loss=0.5)
        self.steps(5, 5, loss=float("nan"))
        self.event("end", 5, how="completed")
        self.log("--wandb", "project", "--wandb-offline")
        found, ids, config = self.history()
        self.assertEqual(len(ids), 1)
        self.assertEqual(config["optimizer.params.lr"], 0.001)
        steps = [(values["step"], values["progress/attempt"]) for _, values in found
                 if "train/loss" in values]
        self.assertEqual(steps, [(1, 1), (2, 1), (3, 1), (4, 1), (4, 2), (5, 2)])
        internal = [step for step, _ in found]
        self.assertEqual(internal, sorted(set(internal)))
        self.assertEqual(found[3][1]["train/loss"], 2)
        self.assertEqual(found[3][1]["progress/tokens"], 4000)
        self.assertEqual(found[4][1]["train/loss"], 0.5)


@unittest.skipUnless(has("mlflow"), "the package mlflow-skinny is not there")
class Mlflow(RunFolder):
    def test_has_each_step_once_and_marks_those_trained_again(self):
        uri = f"file:{self.path / 'ml'}"
        self.begin()
        self.steps(1, 4)
        self.log("--mlflow", uri)
        self.cut(3)
        self.begin(3)
        self.steps(4, 5, loss=0.5)
        self.event("end", 5, how="failed", reason="the disk")
        self.log("--mlflow", uri, "--name", "second")
        with unittest.mock.patch.dict(os.environ, MLFLOW_ALLOW_FILE_STORE="true",
                                      GIT_PYTHON_REFRESH="quiet"):
            from mlflow.tracking import MlflowClient

            client = MlflowClient(uri)
            experiment = client.get_experiment_by_name("sluice")
            runs = client.search_runs([experiment.experiment_id])
            self.assertEqual(len(runs), 1)
            run = runs[0]
            self.assertEqual(run.info.status, "FAILED")
            self.assertEqual(run.data.params["optimizer.params.lr"], "0.001")
            losses = client.get_metric_history(run.info.run_id, "train/loss")
            self.assertEqual([(it.step, it.value) for it in losses],
                             [(1, 8), (2, 4), (3, 8 / 3), (4, 2), (4, 0.5), (5, 0.5)])
            attempts = client.get_metric_history(run.info.run_id, "progress/attempt")
            self.assertEqual([it.value for it in attempts], [1, 1, 1, 1, 2, 2])
            # Pretends that the last batch was not acknowledged.
            state = json.loads(run.data.tags["sluice.state"])
            first = losses[0].timestamp / 1000
            state.update(step=1, unix_s=first, pending=["train/loss", "progress/attempt"], attempt=2)
            client.set_tag(run.info.run_id, "sluice.state", json.dumps(state))
            before = len(losses)
            self.log("--mlflow", uri)
            again = client.get_metric_history(run.info.run_id, "train/loss")
            self.assertEqual(len(again), before)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Gate:
    """A port that forwards to a server while it is open; closed, it refuses connections."""

    def __init__(self, target):
        self.target = target
        self.port = free_port()
        self._listener = None
        self._ends = []

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        for end in [self._listener, *self._ends]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self._ends += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    @staticmethod
    def _carry(source, sink):
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)


@unittest.skipUnless(has("mlflow"), "the package mlflow-skinny is not there")
class MlflowAway(RunFolder):
    def test_a_server_that_cannot_be_reached_is_named_and_costs_no_other_output(self):
        self.begin()
        self.steps(1, 3)
        uri = f"http://127.0.0.1:{free_port()}"
        said = self.log("--mlflow", uri, "--csv", "csv", code=1)
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertRegex(said, f"MLflow: {uri}.*Connection refused;.*the same")
        self.assertEqual([step for step, _ in self.rows()], [1, 2, 3])
        self.event("end", 3, how="completed")
        said = self.log("--mlflow", uri, "--csv", "csv", "--follow", code=1)
        self.assertIn("be tried again", said)
        self.assertRegex(said, "MLflow.*lacks steps")


@unittest.skipUnless(has("mlflow", "flask", "sqlalchemy", "pandas"),
                     "the server of MLflow is not there")
class MlflowServer(RunFolder):
    def test_a_server_that_comes_late_and_drops_in_the_middle_has_each_step_once(self):
        server_port = free_port()
        environment = self.environment()
        environment["PYTHONPATH"] += os.pathsep + str(reference_packages.folder("server"))
        environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port",
             str(server_port), "--workers", "1", "--backend-store-uri",
             f"sqlite:///{self.path}/ml.db", "--default-artifact-root", str(self.path / "files")],
            cwd=self.path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        self.addCleanup(server.wait)
        self.addCleanup(os.killpg, server.pid, signal.SIGKILL)
        gate = Gate(server_port)
        uri = f"http://127.0.0.1:{gate.port}"
        self.begin()
        self.steps(1, 3)
        logger = self.start("--mlflow", uri, "--csv", "csv")
        self.until(lambda: len(self.rows()) == 3, "the other output does not wait")

        def answers():
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{server_port}/health", timeout=5):
                    return True
            return False

        def losses():
            experiment = client.get_experiment_by_name("sluice")
            runs = client.search_runs([experiment.experiment_id]) if experiment else []
            return [(it.step, it.value) for run in runs
                    for it in client.get_metric_history(run.info.run_id, "train/loss")]

        self.until(answers, "the server does not start", limit_s=120)
        gate.open()
        with unittest.mock.patch.dict(os.environ, GIT_PYTHON_REFRESH="quiet"):
            from mlflow.tracking import MlflowClient

            client = MlflowClient(f"http://127.0.0.1:{server_port}")
            self.until(lambda: len(losses()) == 3, "it is not tried again")
            gate.close()
            self.steps(4, 6)
            self.until(lambda: len(self.rows()) == 6, "the other output does not wait")
            self.assertEqual(len(losses()), 3)
            gate.open()
            self.until(lambda: len(losses()) == 6, "what was missed does not come")
            self.steps(7, 7)
            self.event("end", 7, how="completed")
            self.assertEqual(logger.wait(60), 0, logger.stderr.read())
            self.assertEqual(losses(), [(step, 8 / step) for step in range(1, 8)])
            run = client.search_runs([client.get_experiment_by_name("sluice").experiment_id])[0]
            self.assertEqual(run.info.status, "FINISHED")
            self.assertEqual(run.data.metrics["progress/attempt"], 1)
        gate.close()


if __name__ == "__main__":
    unittest.main()
