"""What a script holds in place of an optimizer and a schedule: both are the engine's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from .._core import RefusedError
from ..engine import Engine
from .translate import configured_groups


class ParameterGroup(MutableMapping[str, Any]):
    """One of `optimizer.param_groups`, to read; "lr" is that of the next step."""

    def __init__(self, engine: Engine, share: float, fixed: dict[str, Any]):
        self._engine = engine
        self._share = share  # of the learning rate: the schedule scales those of all groups alike
        self._fixed = fixed

    def __getitem__(self, key: str) -> Any:
        if key == "lr":
            return self._engine.learning_rate * self._share
        return self._fixed[key]

    def __setitem__(self, key: str, value: Any) -> None:
        raise RefusedError(
            f"param_groups[...][{key!r}] cannot be set: the engine's configuration says what it is"
            " (optimizer, optimizer.groups, scheduler). A schedule of one's own is made before the"
            " engine, and given to it: initialize(optimizer=..., lr_scheduler=...)"
        )

    def __delitem__(self, key: str) -> None:
        self[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(("lr", *self._fixed))

    def __len__(self) -> int:
        return 1 + len(self._fixed)


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer. What changes anything in it is ``engine.step()``: :meth:`step` and
    :meth:`zero_grad` do nothing, as those that Accelerate hands out beside DeepSpeed.

    It is one of torch's by name alone: a schedule made of it is refused where it sets a rate."""

    def __init__(self, engine: Engine):  # not the base's: there is nothing to keep
        self._engine = engine
        self.state = defaultdict(dict)
        config = engine.config["optimizer"]
        params = config["params"]
        trained = {name: it for name, it in engine.module.named_parameters() if it.requires_grad}
        groups = configured_groups(engine.config, engine.module)
        base = params["lr"]
        groups_to_read: list[Any] = [
            ParameterGroup(
                engine,
                group.lr / base if base else 1.0,
                {
                    "params": [trained[name] for name in group.names],
                    "initial_lr": group.lr,
                    "weight_decay": group.weight_decay,
                    "betas": tuple(params["betas"]),
                    "eps": params["eps"],
                },
            )
            for group in groups
        ]
        self.param_groups = groups_to_read
        self.defaults = {"lr": params["lr"], "weight_decay": params["weight_decay"]}

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped: its gradient was not finite."""
        return self._engine.last_step is not None and self._engine.last_step.skipped

    step_was_skipped = overflow

    @property
    def cur_scale(self) -> float:
        return self._engine.loss_scale

    loss_scale = cur_scale

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Nothing: engine.step() does it."""
        if closure is not None:
            raise RefusedError("an optimizer with a closure: call engine.backward() and step()")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing: a step's gradients are gone behind it."""

    def state_dict(self) -> dict[str, Any]:
        raise RefusedError("the optimizer's state is saved by engine.save_checkpoint()")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RefusedError("the optimizer's state is loaded by engine.load_checkpoint()")

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise RefusedError("parameters are the engine's: all of them have to be there before it is")

    def __repr__(self) -> str:
        lines = [
            f"  lr {it['lr']:g}, weight_decay {it['weight_decay']:g}: {len(it['params'])}"
            for it in self.param_groups
        ]
        return "\n".join(["sluice's optimizer (", *lines, ")"])


class EngineSchedule:
    """The engine's schedule, which :meth:`step` does not move: ``engine.step()`` does."""

    def __init__(self, engine: Engine, optimizer: EngineOptimizer):
        self._engine = engine
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        """The rates of the next step, by group: what torch's schedules have behind their step()."""
        return [it["lr"] for it in self.optimizer.param_groups]

    get_lr = get_last_lr

    @property
    def last_epoch(self) -> int:
        return self._engine.applied_step

    last_batch_iteration = last_epoch

    def step(self, *_: Any, **__: Any) -> None:
        """Nothing: engine.step() does it."""

    def state_dict(self) -> dict[str, Any]:
        """Where it is. A checkpoint of the engine has it as well."""
        return {"last_batch_iteration": self.last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RefusedError("the schedule goes with the engine: engine.load_checkpoint() sets it")


def shadow_optimizer(lr: float, module: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer that takes no step: for whoever makes a schedule of one."""
    trained = [it for it in module.parameters() if it.requires_grad]
    return torch.optim.AdamW(trained, lr=lr)
