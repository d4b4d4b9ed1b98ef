"""An MLflow run, by its tracking URI: a folder, a database or a server.

MLflow keeps every value of a metric: steps that are trained again appear again, with a later time
and a larger progress/attempt. What was written is recorded in tags of the run, so any machine can
continue it.

A server that cannot be reached raises Away: the caller may open() the output again.
"""

import contextlib
import json
import os
import re
import time

from .outputs import Away, Failure, Output, missing

MOST_METRICS = 900  # per batch; the server accepts 1000
MOST_PARAMETERS = 90
# Limits of a request, unless set: MLflow's defaults would retry for minutes before failing.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
            "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1"}
STATUS = {"completed": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MlflowRun(Output):
    kind = "MLflow"

    def __init__(self, uri, experiment="sluice", name=None):
        super().__init__(None)
        for key, value in PATIENCE.items():
            os.environ.setdefault(key, value)
        try:
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError as error:
            raise missing(self.kind, "mlflow-skinny", error) from error
        self._metric, self._param, self._exception = Metric, Param, MlflowException
        self._name = name
        self._uri = uri
        self._experiment_name = experiment
        self._experiment = self._run = None
        with self._asking():
            self._client = MlflowClient(uri)

    @contextlib.contextmanager
    def _asking(self):
        try:
            yield
        except (self._exception, OSError) as error:
            is_server = str(self._uri).lower().startswith(("http://", "https://"))
            reason = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(error))
            raise (Away if is_server else Failure)(
                f"{self.kind}: {self._uri} cannot be used: "
                f"{reason[1] if reason and is_server else str(error)[:500]}") from error

    def _experiment_id(self):
        found = self._client.get_experiment_by_name(self._experiment_name)
        return found.experiment_id if found else self._client.create_experiment(
            self._experiment_name)

    def open(self, identity, parameters, has_all_before=True):
        with self._asking():
            self._experiment = self._experiment_id()
            self._run = None
            self._is_begun = True
            self.state = self._find(identity)
            super().open(identity, parameters, has_all_before)

    def take(self, records):
        with self._asking():
            super().take(records)

    def note(self, events):
        with self._asking():
            super().note(events)

    def end(self, how, reason):
        with self._asking():
            super().end(how, reason)

    def _find(self, identity):
        word = str(identity).replace("'", " ")
        runs = self._client.search_runs([self._experiment],
                                        f"tags.`sluice.identity` = '{word}'", max_results=1)
        if not runs:
            return {"identity": None, "version": 0}
        self._run = runs[0].info.run_id
        state = runs[0].data.tags.get("sluice.state")
        self._is_begun = state is not None  # otherwise the connection was lost in between
        return json.loads(state or "{}")

    def _load(self):
        return {}

    def _save(self):
        self._client.set_tag(self._run, "sluice.state", json.dumps(self.state))

    def _begin(self, parameters):
        tags = {"sluice.identity": str(self.state["identity"]).replace("'", " "),
                "mlflow.source.name": "sluice"}
        if self._run is None or self._is_begun:
            made = self._client.create_run(self._experiment, tags=tags, run_name=self._name)
            self._run = made.info.run_id
        self.state["attempt"] = 1
        params = [self._param(_key(key), str(value)[:500]) for key, value in parameters.items()]
        for i in range(0, len(params), MOST_PARAMETERS):
            self._client.log_batch(self._run, params=params[i:i + MOST_PARAMETERS])

    def _resume(self):
        self._client.update_run(self._run, status="RUNNING")
        pending = self.state.pop("pending", None)
        self._there = self._already(pending) if pending else set()
        return True

    def _already(self, keys):
        """What the server already has of a batch that was not acknowledged."""
        return {(key, metric.step, metric.timestamp) for key in keys
                for metric in self._client.get_metric_history(self._run, key)}

    def _rewind(self, step):
        self.state["attempt"] += 1

    def _write(self, records):
        metrics = []
        for record in records:
            values = dict(record.values)
            values["progress/attempt"] = float(self.state["attempt"])
            if record.tokens is not None:
                values["progress/tokens"] = float(record.tokens)
            at_ms = int(1000 * (time.time() if record.unix_s is None else record.unix_s))
            metrics += [self._metric(name, value, at_ms, record.step)
                        for name, value in values.items()]
        self._log(metrics)

    def _log(self, metrics):
        there = getattr(self, "_there", set())
        metrics = [metric for metric in metrics
                   if (metric.key, metric.step, metric.timestamp) not in there]
        self.state["pending"] = sorted({metric.key for metric in metrics})
        self._save()
        for i in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[i:i + MOST_METRICS])
        self.state.pop("pending")

    def _note(self, events):
        metrics = []
        for event in events:
            at_ms = int(1000 * event["unix_s"]) if isinstance(
                event.get("unix_s"), (int, float)) else int(1000 * time.time())
            if event["event"] == "checkpoint":
                metrics += [self._metric(f"checkpoint/{key}", float(event[key]), at_ms,
                                         event["step"])
                            for key in ("bytes", "stopped_s", "took_s")
                            if isinstance(event.get(key), (int, float))]
            text = event.get("text") or event.get("failed")
            if text:
                self._client.set_tag(self._run, f"sluice.last_{event['event']}", str(text)[:500])
        if metrics:
            self._log(metrics)

    def _end(self, how, reason):
        if reason:
            self._client.set_tag(self._run, "sluice.reason", reason[:500])
        self._client.set_terminated(self._run, STATUS.get(how, "FAILED"))


def _key(text):
    kept = "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in text)
    return kept[:250] or "_"
