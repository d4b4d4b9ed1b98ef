"""Stand-ins for the optimizer and the schedule in scripts: the engine has the real ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from .._core import RefusedError
from ..engine import Engine
from .translate import configured_groups


class ParameterGroup(MutableMapping[str, Any]):
    """A read-only entry of `optimizer.param_groups`; "lr" is that of the next step."""

    def __init__(self, engine: Engine, share: float, fixed: dict[str, Any]):
        self._engine = engine
        self._share = share  # of the learning rate: the schedule scales all groups alike
        self._fixed = fixed

    def __getitem__(self, key: str) -> Any:
        if key == "lr":
            return self._engine.learning_rate * self._share
        return self._fixed[key]

    def __setitem__(self, key: str, value: Any) -> None:
        raise RefusedError(
            f"param_groups[...][{key!r}] cannot be set: the engine's configuration sets it"
            " (optimizer, optimizer.groups, scheduler). To use your own schedule, make it before"
            " the engine and pass it: initialize(optimizer=..., lr_scheduler=...)"
        )

    def __delitem__(self, key: str) -> None:
        self[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(("lr", *self._fixed))

    def __len__(self) -> int:
        return 1 + len(self._fixed)


class EngineOptimizer(torch.optim.Optimizer):
    """The engine's optimizer. Only ``engine.step()`` updates parameters: :meth:`step` and
    :meth:`zero_grad` do nothing, like those that Accelerate returns with DeepSpeed.

    It is a torch optimizer only by type: a schedule made from it is refused if it sets a rate."""

    def __init__(self, engine: Engine):  # the base class would keep state
        self._engine = engine
        self.state = defaultdict(dict)
        config = engine.config["optimizer"]
        params = config["params"]
        trained = {
            name: parameter
            for name, parameter in engine.module.named_parameters()
            if parameter.requires_grad
        }
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
        """Whether the last step was skipped because its gradient was not finite."""
        return self._engine.last_step is not None and self._engine.last_step.skipped

    step_was_skipped = overflow

    @property
    def cur_scale(self) -> float:
        return self._engine.loss_scale

    loss_scale = cur_scale

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing: engine.step() updates the parameters."""
        if closure is not None:
            raise RefusedError(
                "step() takes no closure: call engine.backward(loss) and engine.step()"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: a step's gradients are dropped after it."""

    def state_dict(self) -> dict[str, Any]:
        raise RefusedError("the optimizer's state is saved by engine.save_checkpoint()")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RefusedError("the optimizer's state is loaded by engine.load_checkpoint()")

    def add_param_group(self, group: dict[str, Any]) -> None:
        raise RefusedError("parameters cannot be added later: create all of them before the engine")

    def __repr__(self) -> str:
        lines = [
            f"  lr {group['lr']:g}, weight_decay {group['weight_decay']:g}: {len(group['params'])}"
            for group in self.param_groups
        ]
        return "\n".join(["sluice's optimizer (", *lines, ")"])


class EngineSchedule:
    """The engine's schedule. :meth:`step` does nothing: ``engine.step()`` advances it."""

    def __init__(self, engine: Engine, optimizer: EngineOptimizer):
        self._engine = engine
        self.optimizer = optimizer

    def get_last_lr(self) -> list[float]:
        """The learning rates of the next step, by group, as torch's schedules have after step()."""
        return [group["lr"] for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    @property
    def last_epoch(self) -> int:
        return self._engine.applied_step

    last_batch_iteration = last_epoch

    def step(self, *_: Any, **__: Any) -> None:
        """Does nothing: engine.step() advances the schedule."""

    def state_dict(self) -> dict[str, Any]:
        """The position of the schedule, which checkpoints of the engine contain as well."""
        return {"last_batch_iteration": self.last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise RefusedError(
            "the schedule is part of the engine: engine.load_checkpoint() restores it"
        )


def shadow_optimizer(lr: float, module: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer that never steps, for making a schedule from."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=lr)
