"""Warnings about runs that are unlikely to learn, as in the command line. Each is given once."""

from __future__ import annotations

import logging

from ._core import StepOutcome
from ._trained import TrainedModule

_log = logging.getLogger("sluice")
_MOST_USUAL_RATE = 1  # as in tools/session/train_checks.cc
_STEPS_AT_NORM_0 = 3  # as in engine/observe/run_totals.h


class LearningWatch:
    """Watches the learning rates of an engine before steps, and the gradient norms after them."""

    def __init__(self, trained: TrainedModule):
        self._trained = trained
        keys = trained.keys()
        rate, groups = keys["optimizer"]["params"]["lr"], keys["optimizer"].get("groups", [])
        of_groups = [group["lr"] for group in groups if group.get("lr") is not None]
        self._most_of_rate = (
            max([1.0, *(own_rate / rate for own_rate in of_groups)]) if rate > 0 else 1.0
        )
        # Without a schedule, groups have their own rates whatever the base rate is.
        self._most_of_groups = max(of_groups, default=0) if rate == 0 else 0
        # A range test raises the rate too far on purpose.
        is_test = keys.get("scheduler", {}).get("type") == "LRRangeTest"
        self._says_rate = trained.ranks.rank == 0 and not is_test
        self._says_norm = trained.ranks.rank == 0
        self._at_norm_0 = 0  # in a row

    def look_at_rate(self) -> None:
        """Checks the rate of the step that begins."""
        most = max(self._trained.run.learning_rate * self._most_of_rate, self._most_of_groups)
        if not self._says_rate or most < _MOST_USUAL_RATE:
            return
        self._says_rate = False
        _log.warning(
            "the learning rate reaches %g, and AdamW changes each weight by up to that much in a"
            " step: the model is unlikely to learn. Usual rates are 1e-6 to 1e-2"
            " (optimizer.params.lr, scheduler)",
            most,
        )

    def look_at_norm(self, outcome: StepOutcome) -> None:
        if outcome.skipped:
            return
        self._at_norm_0 = self._at_norm_0 + 1 if outcome.grad_norm == 0 else 0
        if not self._says_norm or self._at_norm_0 < _STEPS_AT_NORM_0:
            return
        self._says_norm = False
        _log.warning(
            "the gradient norm was exactly 0 for the last %d steps, up to step %d: the model is not"
            " learning. Either a learning rate that is too high has made the weights too large"
            " (optimizer.params.lr): resume from an earlier checkpoint with a lower rate. Or no"
            " token of the data is trained on: check the labels",
            _STEPS_AT_NORM_0,
            self._trained.run.global_step,
        )
