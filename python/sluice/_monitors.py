"""DeepSpeed's monitors: an engine's steps for TensorBoard, Weights & Biases and CSV files.

The package sluice_log writes them, with the same metric names as sluice-log. Any failure of a
monitor is a warning: training continues without it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger("sluice")
_EVERY_S = 1.0  # steps may be shorter than a write to disk


class Monitors:
    """The outputs that a configuration requests, usually none."""

    def __init__(self, config: Mapping[str, Any], run_dir: str | None):
        """`config`: resolved. `run_dir`: for files whose folder is not configured; default: the
        current folder."""
        self._config = config
        self._run_dir = run_dir or os.getcwd()
        self._outputs: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._is_open = False
        self._began_s: float | None = None
        self._records: list[Any] = []  # not yet written
        self._wrote_s = time.monotonic()
        wanted = [name for name in ("tensorboard", "csv_monitor", "wandb") if self._asks_for(name)]
        if not wanted:
            return
        try:
            import sluice_log  # noqa: F401
        except ImportError as error:
            _log.warning(
                "%s: no metrics are written, because the package sluice_log, which is installed"
                " with Sluice, cannot be imported: %s",
                ", ".join(wanted),
                error,
            )
            return
        for name in wanted:
            self._guarded(name, lambda name=name: self._outputs.append(self._made(name)))

    def _asks_for(self, name: str) -> bool:
        return bool(self._config.get(name, {}).get("enabled"))

    def _made(self, name: str) -> Any:
        keys = self._config[name]
        if name == "wandb":
            from sluice_log.wandb import WandbRun

            return WandbRun(
                keys["project"],
                folder=self._run_dir,
                team=keys["team"] or None,
                group=keys["group"] or None,
            )
        folder = os.path.join(
            keys["output_path"] or os.path.join(self._run_dir, name.removesuffix("_monitor")),
            keys["job_name"],
        )
        if name == "tensorboard":
            from sluice_log.tensorboard import TensorBoard

            return TensorBoard(folder)
        from sluice_log.csv_files import CsvFiles

        return CsvFiles(folder)

    def _guarded(self, name: str, work: Any) -> bool:
        try:
            work()
            return True
        except Exception as error:  # from packages, disks and servers: none may end training
            _log.warning(
                "%s: no more metrics are written; training continues: %s",
                name,
                error or type(error).__name__,
            )
            return False

    def begin_step(self) -> None:
        """Called when the first micro-batch of a step begins."""
        if self._outputs and self._began_s is None:
            self._began_s = time.monotonic()

    def step(self, metrics: Mapping[str, Any]) -> None:
        """Called after a step with its metrics.jsonl values, as far as they are available."""
        if not self._outputs:
            return
        from sluice_log.records import record_of

        # None marks a value that does not exist.
        there = {key: value for key, value in metrics.items() if value is not None}
        known: dict[str, Any] = {"unix_s": time.time(), **there}
        if self._began_s is not None:
            known.setdefault("step_ms", 1e3 * (time.monotonic() - self._began_s))
        self._began_s = None
        record = record_of(known)
        if record is not None:
            self._records.append(record)
        if time.monotonic() - self._wrote_s >= _EVERY_S:
            self._write()

    def _write(self) -> None:
        records, self._records = self._records, []
        self._wrote_s = time.monotonic()
        if not records:
            return

        def write(output: Any) -> None:
            if not self._is_open:
                # Each step is new; a step up to the last one written replaces it.
                output.open("sluice for Python", self._flat(), has_all_before=False)
            output.take(records)

        self._outputs = [
            output
            for output in self._outputs
            if self._guarded(output.kind, lambda output=output: write(output))
        ]
        self._is_open = True

    def _flat(self) -> dict[str, Any]:
        from sluice_log.run import flatten

        if not self._parameters:
            flatten(self._config, "", self._parameters)
        return self._parameters

    def close(self) -> None:
        self._write()
        outputs, self._outputs = self._outputs, []
        for output in outputs:
            self._guarded(output.kind, output.close)
