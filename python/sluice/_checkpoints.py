"""Checkpoints of a module in training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from . import _client
from ._core import RefusedError
from ._records import Record
from ._steps import Steps
from ._trained import TrainedModule


class Checkpoints:
    """Saves and loads the state of a module in training."""

    def __init__(self, trained: TrainedModule, steps: Steps, record: Record):
        self._trained = trained
        self._steps = steps
        self._record = record

    def save(
        self,
        directory: str | os.PathLike[str] | None,
        client_state: Any,
        background: bool | None,
        within_step: bool,
    ) -> str:
        trained = self._trained
        if directory is None:
            if not self._record.directory:
                raise RefusedError("save_checkpoint() needs a folder: the engine has no run_dir")
            directory = self._record.directory
        trained.check_values()
        trained.residency.check_memory()
        trained.residency.release_all()
        self.wait()
        client = trained.pack(client_state)
        in_background = trained.config.saves_in_background if background is None else background
        last = self._steps.last
        loss = last.loss if last is not None else None
        try:
            return trained.run.save(os.fspath(directory), client, in_background, loss, within_step)
        finally:
            self._record.note_saves()
            if not in_background:  # the exception being raised reports the failure
                self._record.forget_failed()

    def wait(self) -> None:
        self._trained.run.wait_for_saves()
        self._record.note_saves()
        self._record.raise_failed()

    def load(self, path: str | os.PathLike[str] | None) -> tuple[str, Any]:
        trained = self._trained
        if path is None:
            if not self._record.directory:
                raise RefusedError("load_checkpoint() needs a path: the engine has no run_dir")
            path = self._record.directory
        return self._load(
            [os.fspath(path)],
            lambda clients: _client.read(
                clients[0], trained.module, trained.frozen_sample, trained.ranks.rank
            ),
        )

    def load_stages(self, paths: Sequence[str], stage: int | None) -> Any:
        trained = self._trained

        def read(clients: list[str]) -> _client.Stored:
            if stage is not None:
                text = clients[stage]
            else:
                text = _client.of_other_stages(clients, trained.module, trained.frozen_sample)
            return _client.read(text, trained.module, trained.frozen_sample, trained.ranks.rank)

        return self._load(list(paths), read)[1]

    def _load(
        self, paths: list[str], read: Callable[[list[str]], _client.Stored]
    ) -> tuple[str, Any]:
        trained = self._trained
        if trained.is_empty and any(not managed.trained for managed in trained.managed.values()):
            raise RefusedError(
                "a checkpoint does not contain frozen parameters, and those of a module made under"
                " sluice.init(values=False) have no values: call load_weights() before"
                " load_checkpoint()"
            )
        self._steps.forget()
        trained.residency.release_all()
        self.wait()
        accepted: list[_client.Stored] = []
        folder = trained.run.load(paths, lambda clients: accepted.append(read(clients)))
        trained.is_empty = False
        self._steps.last = None
        trained.residency.attach()
        trained.residency.step_taken()
        self._record.begin_anew()
        return folder, _client.restore(accepted[0], trained.module)
