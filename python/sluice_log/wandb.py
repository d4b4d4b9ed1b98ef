"""A Weights & Biases run, on its server or in an offline folder (for wandb sync).

Its history only grows: steps that are trained again appear again, with a larger progress/attempt.
Charts use "step" as their axis; "progress/tokens" is available as well.

A server that cannot be reached at the start raises Away: the caller may open() the output again.
After the start, wandb keeps what it cannot send and retries by itself.
"""

import uuid
from pathlib import Path

from .outputs import Away, Failure, Output, missing

INIT_TIMEOUT_S = 20  # wandb's default of 90 would delay other outputs


class WandbRun(Output):
    kind = "Weights & Biases"

    def __init__(self, project, folder=None, team=None, group=None, name=None, offline=False):
        super().__init__(Path(folder or ".") / "wandb")
        try:
            import wandb
        except ImportError as error:
            raise missing(self.kind, "wandb", error) from error
        self._wandb = wandb
        self._settings = {"project": project, "entity": team, "group": group, "name": name}
        self._offline = offline
        self._run = None
        self._parameters = None  # of a run that has not begun yet
        self._code = 0

    def _begin(self, parameters):
        self.state.update(run=uuid.uuid4().hex[:8], sequence=0, attempt=1)
        self._parameters = parameters
        self._init()

    def _resume(self):
        if self._run is None:
            self._init()
        return True

    def _init(self):
        if self._run is not None:  # an earlier run
            self._run.finish()
        settings = self._wandb.Settings(console="off", silent=True,
                                        init_timeout=INIT_TIMEOUT_S)
        try:
            self._run = self._wandb.init(
                id=self.state["run"], resume="allow", dir=str(self.folder.parent),
                config=self._parameters, mode="offline" if self._offline else None,
                settings=settings, **self._settings)
        except self._wandb.errors.CommError as error:
            raise Away(f"{self.kind} cannot be reached: {str(error)[:500]}. --wandb-offline writes "
                       "to a folder that wandb sync sends later") from error
        except Exception as error:  # from wandb, its server or the network
            raise Failure(f"{self.kind} refuses: {error}. Log in (wandb login), or write to a "
                          "folder that wandb sync sends later (--wandb-offline, or "
                          "WANDB_MODE=offline)") from error
        self._parameters = None
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def _rewind(self, step):
        self.state["attempt"] += 1

    def _log(self, step, unix_s, values):
        values.update(step=step)
        if unix_s is not None:
            values["_timestamp"] = unix_s
        self._run.log(values, step=self.state["sequence"])
        self.state["sequence"] += 1

    def _write(self, records):
        for record in records:
            values = dict(record.values)
            values["progress/attempt"] = self.state["attempt"]
            if record.tokens is not None:
                values["progress/tokens"] = record.tokens
            self._log(record.step, record.unix_s, values)

    def _note(self, events):
        for event in events:
            values = {}
            if event["event"] == "checkpoint":
                values = {f"checkpoint/{key}": event[key] for key in ("bytes", "stopped_s", "took_s")
                          if isinstance(event.get(key), (int, float))}
            text = event.get("text") or event.get("failed")
            if text:
                values[f"events/{event['event']}"] = str(text).encode("utf-8", "replace").decode()
            if values:
                self._log(event["step"], None, values)

    def _end(self, how, reason):
        self._code = 1 if how == "failed" else 0
        self._run.summary["end"] = how
        if reason:
            self._run.summary["reason"] = reason

    def _close(self):
        if self._run is not None:
            self._run.finish(exit_code=self._code)
            self._run = None
