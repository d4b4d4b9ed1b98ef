"""DeepSpeed's monitors on an engine: the contents of TensorBoard and CSV files; and training
continues even if they fail."""

import csv
import importlib.util
import json
import os
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import reference_packages

reference_packages.use("monitors")

import sluice
from small_modules import batches, run_config, tower, train


class Monitors(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def files(self, **keys):
        return {"enabled": True, "output_path": str(self.folder), "job_name": "job", **keys}

    def engine(self, **monitors):
        return sluice.initialize(tower(), run_config(**monitors))

    def rows(self):
        with open(self.folder / "job/metrics.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_csv_files_have_each_step_and_those_of_a_resume_replace_the_earlier_ones(self):
        monitor = self.files()
        with self.engine(csv_monitor=monitor) as engine:
            losses = train(engine, batches(3))
            engine.save_checkpoint(self.folder / "run")
            losses += train(engine, batches(6)[3:])
        rows = self.rows()
        self.assertEqual([int(row["step"]) for row in rows], [1, 2, 3, 4, 5, 6])
        self.assertEqual([float(row["train/loss"]) for row in rows], losses)
        self.assertGreater(float(rows[0]["time/step_ms"]), 0)
        self.assertEqual(float(rows[0]["train/learning_rate"]), 0.01)
        with open(self.folder / "job/config.csv", encoding="utf-8", newline="") as file:
            config = {row["key"]: row["value"] for row in csv.DictReader(file)}
        self.assertEqual(config["run.seed"], "3")
        with self.engine(csv_monitor=monitor) as engine:
            engine.load_checkpoint(self.folder / "run")
            again = train(engine, batches(9)[6:])
        self.assertEqual([float(row["train/loss"]) for row in self.rows()], losses[:3] + again)

    @unittest.skipUnless(importlib.util.find_spec("tensorboard"), "tensorboard is not there")
    def test_tensorboard_has_each_step(self):
        with self.engine(tensorboard=self.files()) as engine:
            losses = train(engine, batches(4))
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(self.folder / "job"))
        found.Reload()
        events = found.Scalars("train/loss")
        self.assertEqual([event.step for event in events], [1, 2, 3, 4])
        for event, loss in zip(events, losses, strict=True):
            self.assertAlmostEqual(event.value, loss, 5)

    def test_a_monitor_that_fails_is_a_warning(self):
        (self.folder / "job").write_text("a file")
        with self.engine() as engine:
            expected = train(engine, batches(3))
        with self.assertLogs("sluice", "WARNING") as logs:
            with self.engine(csv_monitor=self.files()) as engine:
                self.assertEqual(train(engine, batches(3)), expected)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("CSV: no more", logs.output[0])
        (self.folder / "job").unlink()
        with unittest.mock.patch.dict(sys.modules, {"tensorboard": None}):
            with self.assertLogs("sluice", "WARNING") as logs:
                with self.engine(tensorboard=self.files(), csv_monitor=self.files()) as engine:
                    train(engine, batches(3))
        self.assertIn("-m pip install tensorboard", " ".join(logs.output))
        self.assertEqual(len(self.rows()), 3)

    def test_without_a_path_files_are_in_the_working_folder(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.folder)
        with self.engine(csv_monitor={"enabled": True}) as engine:
            train(engine, batches(1))
        state = json.loads((self.folder / "csv/DeepSpeedJobName/sluice-log.json").read_text())
        self.assertEqual(state["step"], 1)


if __name__ == "__main__":
    unittest.main()
