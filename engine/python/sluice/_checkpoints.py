"""Checkpoints of a module in training."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch import nn

from . import _client
from ._core import Config, Ranks, RefusedError, Run
from ._threads import alone

if TYPE_CHECKING:
    from ._records import Record
    from ._steps import StepResult
    from .keeper import Keeper
    from .units import ManagedParameter


class Checkpoints:
    """The part of an :class:`Engine` that saves and loads its state."""

    module: nn.Module
    last_step: StepResult | None
    _config: Config
    _frozen_sample: str
    _is_empty: bool
    _keeper: Keeper
    _managed: dict[int, ManagedParameter]
    _ranks: Ranks
    _record: Record
    _run: Run

    def _abandon(self) -> None:
        raise NotImplementedError

    def _check_values(self) -> None:
        raise NotImplementedError

    @alone
    def save_checkpoint(
        self,
        directory: str | os.PathLike[str] | None = None,
        client_state: Any = None,
        *,
        background: bool | None = None,
        within_step: bool = False,
    ) -> str:
        """Saves masters, moments, the step, buffers, torch's random generators and `client_state`,
        which JSON can hold, between steps. Durable when it returns the checkpoint's folder,
        DIR/checkpoints/step-N.

        Frozen parameters are not in it: they are the module's, as it was when the engine was made.

        Args:
            directory: DIR; else the run's folder.
            background: returns once the state is copied, 12 bytes a parameter, and writes it while
                training goes on; None: as run.checkpoint_background says, where that is true.
                Durable after :meth:`wait`, :meth:`close` or the next save.
            within_step: also between micro-batches, before the step's last one: what they have
                added is not in it, and the step goes on.

        Raises:
            Error: what could not be written, now or by the background save before this one;
                checkpoints before it stay.
        """
        if directory is None:
            if not self._record.directory:
                raise RefusedError("save_checkpoint() needs a directory: the engine has no run_dir")
            directory = self._record.directory
        self._check_values()
        self._keeper.check_memory()
        self._keeper.release_all()
        self.wait()
        client = _client.pack(self.module, client_state, self._frozen_sample, self._ranks)
        in_background = self._config.saves_in_background if background is None else background
        in_background = in_background and self._ranks.world == 1
        loss = self.last_step.loss if self.last_step is not None else None
        try:
            return self._run.save(os.fspath(directory), client, in_background, loss, within_step)
        finally:
            self._record.note_saves()
            if not in_background:  # what failed is being raised
                self._record.forget_failed()

    @alone
    def wait(self) -> None:
        """Until no checkpoint is being written.

        Raises:
            Error: one since the last call was not saved.
        """
        self._run.wait_for_saves()
        self._record.note_saves()
        self._record.raise_failed()

    @alone
    def load_checkpoint(self, path: str | os.PathLike[str] | None = None) -> tuple[str, Any]:
        """Goes on where a checkpoint was made, with the bits of a run that never stopped.

        Args:
            path: a checkpoint's folder, or a directory that was given to :meth:`save_checkpoint`:
                its newest; else the run's folder.

        Returns:
            The checkpoint's folder and the client_state that was saved.

        Raises:
            RefusedError: it is of another module or configuration. Nothing has changed.
            Error: it cannot be read, or is damaged.
        """
        if path is None:
            if not self._record.directory:
                raise RefusedError("load_checkpoint() needs a path: the engine has no run_dir")
            path = self._record.directory
        if self._is_empty and any(not it.trained for it in self._managed.values()):
            raise RefusedError(
                "a checkpoint has no frozen parameters, and those of a module that was made by"
                " sluice.init(values=False) have no values: load_weights() gives them, before"
                " load_checkpoint()"
            )
        self._abandon()
        self._keeper.release_all()
        self.wait()
        accepted: list[_client.Stored] = []
        folder = self._run.load(
            os.fspath(path),
            lambda client: accepted.append(
                _client.read(client, self.module, self._frozen_sample, self._ranks.rank)
            ),
        )
        self._is_empty = False
        self.last_step = None
        self._keeper.attach()
        self._keeper.step_taken()
        self._record.begin_anew()
        return folder, _client.restore(accepted[0], self.module)
