"""Hugging Face's Trainer, with the engine's training:

    trainer = sluice.transformers.Trainer(
        model=model, args=TrainingArguments(...), train_dataset=data, sluice="ds_config.json"
    )
    trainer.train()

Arguments, callbacks, evaluation, checkpoints and resuming work as in the plain Trainer. The
configuration is what you would pass to ``deepspeed=``, or a run file. Its "auto" values come from
TrainingArguments. ``TrainingArguments(deepspeed=...)`` may stay: it is used if there is no
``sluice=``.

To use another library's Trainer, inherit from both: ``class Mine(TrainerMixin, trl.SFTTrainer)``.

Several ranks (torchrun, accelerate launch) train together, each on its part of the batches. This is
as with the plain Trainer, but without DistributedDataParallel.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
import transformers

from . import _trainer_ranks
from ._core import RefusedError
from ._trainer_config import TrainerConfig
from .deepspeed import shadow_optimizer, translate
from .deepspeed.facades import EngineOptimizer, EngineSchedule
from .engine import Engine, StepResult, initialize
from .units import UnitPolicy

_WANTED = ("_prepare_for_training", "_save_optimizer_and_scheduler", "_load_from_checkpoint")
if any(not hasattr(transformers.Trainer, name) for name in _WANTED):
    raise ImportError(
        f"sluice.transformers is for transformers 5.3 and later 5.x: {transformers.__version__} is installed"
    )

_FOLDER = "sluice"  # within a checkpoint's folder
_IN_PLACE = "sluice.transformers"  # in place of a DeepSpeed plug-in; a plain Trainer refuses it


def _keep_deepspeed(plain: Any) -> Any:
    @wraps(plain)
    def post_init(args: Any) -> None:
        given, args.deepspeed = args.deepspeed, None
        try:
            plain(args)
        finally:
            args.deepspeed = given
        if isinstance(given, str) and given.lstrip().startswith("{"):
            args.deepspeed = json.loads(given)
        if given:
            args.deepspeed_plugin = _IN_PLACE

    return post_init


if importlib.util.find_spec("deepspeed") is None:  # TrainingArguments(deepspeed=...) imports it
    transformers.TrainingArguments.__post_init__ = _keep_deepspeed(  # type: ignore[method-assign]
        transformers.TrainingArguments.__post_init__
    )


def _take_deepspeed(given: tuple, named: Mapping[str, Any]) -> Any:
    """The value of TrainingArguments(deepspeed=...) among a Trainer's arguments."""
    for args in (*given, *named.values()):
        if isinstance(args, transformers.TrainingArguments):
            if getattr(args, "deepspeed_plugin", None) == _IN_PLACE:
                args.deepspeed_plugin = None
                return args.deepspeed
            if not hasattr(args, "hf_deepspeed_config"):  # from an earlier Trainer
                return args.deepspeed
    return None


_Trainer: Any = transformers.Trainer if TYPE_CHECKING else object


class TrainerMixin(_Trainer):
    """Makes a Trainer train with the engine: ``class Mine(TrainerMixin, SomeTrainer)``.

    Args:
        sluice: a configuration, as a path or a dict. If it has no optimizer or scheduler, they are
            those that the Trainer would make (``optim``, ``lr_scheduler_type``, ``optimizers=``, an
            overridden ``create_optimizer``), if the engine supports them.
        units: which modules are fetched as a whole: :data:`sluice.UnitPolicy`.

    Raises:
        RefusedError: an argument is not supported; the message names it. Raised in ``train()`` at
            the latest.
    """

    #: The engine; set by ``train()``.
    engine: Engine | None = None
    _gathered: dict[str, torch.Tensor] | None = None  # set while all ranks save

    # Attributes of the Trainer.
    optimizer: Any
    lr_scheduler: Any
    _created_lr_scheduler: bool

    def __init__(
        self,
        *args: Any,
        sluice: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        units: UnitPolicy = "auto",
        **kwargs: Any,
    ):
        deepspeed = _take_deepspeed(args, kwargs)
        if sluice is not None and deepspeed:
            raise RefusedError(
                "Trainer(sluice=...) and TrainingArguments(deepspeed=...) exclude each other:"
                " remove one"
            )
        sluice = deepspeed or sluice
        if sluice is None:
            raise RefusedError('Trainer needs a configuration: sluice="ds_config.json"')
        TrainerConfig(sluice)  # refuses an invalid configuration here
        self._source = sluice
        self._policy = units
        super().__init__(*args, **kwargs)
        self._given = self.optimizer, self.lr_scheduler
        if self.optimizer_cls_and_kwargs is not None:
            raise RefusedError(
                "optimizer_cls_and_kwargs is not supported: pass"
                " optimizers=(torch.optim.AdamW(...),)"
            )

    @property
    def _running(self) -> Engine:
        assert self.engine is not None
        return self.engine

    @property
    def _last(self) -> StepResult:
        assert self._running.last_step is not None
        return self._running.last_step

    # ---- what the Trainer would do with the model

    def create_accelerator_and_postprocess(self) -> None:
        _check_arguments(self.args)
        super().create_accelerator_and_postprocess()
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise RefusedError(
                "Accelerate is configured for DeepSpeed or FSDP, which sluice= replaces: remove"
                " that configuration"
            )
        self.accelerator.backward = self._backward

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        built = super()._build_accelerator_args(**kwargs)
        built["mixed_precision"] = "no"  # no autocast: the module itself computes in 16 bits
        return built

    def _move_model_to_device(self, model: torch.nn.Module, device: torch.device) -> None:
        """Does nothing: the engine moves the model."""

    # ---- train()

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None
    ) -> tuple[torch.nn.Module, Any]:
        self._take_back(resume_from_checkpoint)
        if self._created_lr_scheduler:
            self.lr_scheduler = None
            self._created_lr_scheduler = False
        config = TrainerConfig(self._source)
        keys = config.complete(self.args, max_steps, self.model)
        overrides = self._translate(config, max_steps)
        wanted = "cpu" if self.args.device.type == "cpu" else "cuda"
        if (config.value("run.device") or wanted) not in ("auto", wanted):
            raise RefusedError(
                f"run.device differs from the Trainer's device, {wanted}: remove run.device, or set"
                " use_cpu"
            )
        overrides["run.device"] = wanted
        _trainer_ranks.take_first_ranks_values(self.model, self.args)
        self.engine = initialize(self.model, keys, units=self._policy, overrides=overrides)
        self.engine.follow_module()
        self.optimizer = EngineOptimizer(self.engine)
        self.lr_scheduler = EngineSchedule(self.engine, self.optimizer)
        self.model_wrapped = self.model
        self.accelerator._models.append(self.model)  # evaluation must not wrap it
        if resume_from_checkpoint is not None:
            try:
                self._load_engine(resume_from_checkpoint)
            except BaseException:
                self._give_back()
                raise
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.callback_handler.train_dataloader = train_dataloader
        return self.model, train_dataloader

    def _take_back(self, resume_from_checkpoint: str | None) -> None:
        """Closes the engine of an earlier train(), unless it trained the same model."""
        if self.engine is None:
            return
        if self.engine.module is self.model and resume_from_checkpoint is None:
            raise RefusedError(
                "train() was called a second time, which would continue AdamW's moments with"
                " another schedule: resume with resume_from_checkpoint=True, or make a new Trainer"
                " with a newly loaded model"
            )
        self._give_back()

    def _give_back(self) -> None:
        """Closes the engine. Its module gets values of its own again, in the type that it computed
        with."""
        engine, self.engine = self._running, None
        try:
            engine.close(keep_values=engine.module is self.model)
        finally:
            self.optimizer, self.lr_scheduler = self._given

    def _translate(self, config: TrainerConfig, max_steps: int) -> translate.Keys:
        keys: translate.Keys = {}
        if config.has("optimizer"):
            if self.optimizer is not None:
                raise RefusedError(
                    "both optimizers= and the configuration have an optimizer: remove one"
                )
            lr = config.value("optimizer.params.lr")
            optimizer = shadow_optimizer(self.args.learning_rate if lr is None else lr, self.model)
        else:
            optimizer = self.create_optimizer()
            keys.update(translate.optimizer_keys(optimizer, self.model))
        if config.has("scheduler"):
            if self.lr_scheduler is not None:
                raise RefusedError(
                    "both optimizers= and the configuration have a schedule: remove one"
                )
        else:
            schedule = self.create_scheduler(num_training_steps=max_steps, optimizer=optimizer)
            keys.update(translate.schedule_keys(schedule, optimizer))
        return keys

    def _backward(self, loss: torch.Tensor, **_: Any) -> None:
        self._running.backward(loss, averages=False)  # the Trainer has already divided it

    def training_step(self, model: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._forgets_where_it_fails(), _trainer_ranks.ends_all(self.engine):
            loss = super().training_step(model, *args, **kwargs)
            self._end_micro_batch()
        return loss

    def _end_micro_batch(self) -> None:
        """Ends a step when the plain Trainer does. The plain Trainer counts micro-batches from the
        start of each pass over the data. If the data has no length, what a pass leaves over carries
        over to the next. Such a step has more micro-batches than the engine's, whose last one takes
        the rest."""
        engine = self._running
        if self.accelerator.sync_gradients or not engine.is_boundary:
            engine.step(is_last=self.accelerator.sync_gradients)

    def prediction_step(
        self,
        model: torch.nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self._is_of_several and hasattr(self, "_gen_kwargs"):  # none ends before the others
            self._gen_kwargs.setdefault("synced_gpus", True)
        wants_loss_alone = prediction_loss_only and self.engine is not None
        with self._running.without_logits() if wants_loss_alone else nullcontext():
            return super().prediction_step(model, inputs, prediction_loss_only, *args, **kwargs)

    @contextmanager
    def _forgets_where_it_fails(self) -> Any:
        try:
            yield
        except BaseException:
            self._running.abandon()
            raise

    def _clip_grad_norm(self, model: torch.nn.Module) -> float:
        return self._last.grad_norm

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> float:
        return self._last.grad_norm

    def _get_learning_rate(self) -> float:
        """The rate of the last step, which the Trainer logs; before the first step, that of the
        first."""
        if self._running.last_step is None:
            return self._running.learning_rate
        return self._last.learning_rate

    # ---- several ranks

    @property
    def _is_of_several(self) -> bool:
        return self.engine is not None and self.engine.world_size > 1

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        with _trainer_ranks.ends_all(self.engine):
            super()._run_epoch(*args, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        with _trainer_ranks.ends_all(self.engine):
            return super()._finalize_training(*args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        if self.engine is not None and self.engine.module is self.model:
            self.accelerator._models = [self.model]  # a train() that was refused has cleared it
        with _trainer_ranks.ends_all(self.engine):
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        with _trainer_ranks.ends_all(self.engine):
            self._gathered = None  # push_to_hub saves within a save
            self._gathered = self._values_of_all()
            try:
                super().save_model(*args, **kwargs)
            finally:
                self._gathered = None

    def _values_of_all(self) -> dict[str, torch.Tensor] | None:
        """Gathers values on the rank that writes, with the help of the other ranks. Whether all
        ranks call _save() depends on the version of transformers."""
        if not self._is_of_several:
            return None
        if self.args.should_save:
            return self.model.state_dict()
        self._running.follow_state_dict()
        return {}

    # ---- checkpoints

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if state_dict is None:
            state_dict = self._values_of_all() if self._gathered is None else self._gathered
        if not self._is_of_several:
            super()._save(output_dir, state_dict)
        elif self.args.should_save:
            super()._save(output_dir, dict(state_dict or {}))  # it empties the dict

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._running.save_checkpoint(
            os.path.join(output_dir, _FOLDER), background=False, within_step=True
        )

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Runs before the engine exists, so it only checks that the checkpoint can be resumed."""
        needed = (_FOLDER, transformers.trainer.TRAINER_STATE_NAME)
        missing = [
            name for name in needed if not os.path.exists(f"{resume_from_checkpoint}/{name}")
        ]
        if not missing:
            return
        where = os.path.dirname(os.path.abspath(resume_from_checkpoint))
        others = transformers.trainer_utils.sort_checkpoints(output_dir=where)
        whole = [
            folder
            for folder in others
            if all(os.path.exists(f"{folder}/{name}") for name in needed)
        ]
        raise RefusedError(
            f"{resume_from_checkpoint} cannot be resumed: it has no {' and no '.join(missing)}"
            + (f"; {whole[-1]} is complete" if whole else "")
            + ". To load weights only, use from_pretrained()"
        )

    def _load_engine(self, checkpoint: str) -> None:
        generator = torch.get_rng_state()  # the Trainer restores its own copy later
        try:
            self._running.load_checkpoint(os.path.join(checkpoint, _FOLDER))
        finally:
            torch.set_rng_state(generator)

    def _load_best_model(self) -> None:
        self._load_engine(self.state.best_model_checkpoint)


class Trainer(TrainerMixin, transformers.Trainer):
    """transformers.Trainer with the engine. :class:`TrainerMixin` documents the arguments it
    adds."""


class Seq2SeqTrainer(TrainerMixin, transformers.Seq2SeqTrainer):
    """transformers.Seq2SeqTrainer with the engine, including ``predict_with_generate``."""


def _check_arguments(args: Any) -> None:
    if hasattr(args, "hf_deepspeed_config"):
        raise RefusedError(
            "TrainingArguments(deepspeed=...) loads the package deepspeed, which changes how models"
            " are made: pass the JSON as Trainer(sluice=...)"
        )
    instead = {
        "fsdp": "remove it",
        "torch_compile": "compile the forward of the model's blocks",
        "auto_find_batch_size": "say per_device_train_batch_size",
        "fp16_full_eval": "fp16=True already evaluates in fp16",
        "bf16_full_eval": "bf16=True already evaluates in bf16",
        "parallelism_config": "remove it",
    }
    for name, sentence in instead.items():
        if getattr(args, name, None):
            raise RefusedError(f"TrainingArguments({name}=...) is not supported: {sentence}")
    if args.save_only_model and args.load_best_model_at_end:
        raise RefusedError(
            "save_only_model and load_best_model_at_end exclude each other: the best"
            " model could not be loaded"
        )
    _trainer_ranks.check(args)
    if args.n_gpu > 1:
        args._n_gpu = 1  # an engine uses one GPU
