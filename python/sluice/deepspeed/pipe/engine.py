"""PipelineEngine: DeepSpeed's engine for a PipelineModule."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.data import DataLoader, DistributedSampler

from ... import ranks
from ..._core import NonFiniteGradientError, Ranks, RefusedError
from ...engine import Engine
from ..engine import DeepSpeedEngine
from ..loaders import RepeatingLoader
from . import checkpoints
from .messages import Link
from .module import PipelineModule
from .passes import StagePasses
from .tied_exchange import TiedExchange

_log = logging.getLogger("sluice")
_SAMPLED = 1 << 16  # elements

def _mark_of(batch: Sequence[Any]) -> str:
    """The form and a fingerprint of the labels of the first micro-batch. Empty without a tensor."""
    labels = batch[0][1] if batch else None
    if isinstance(labels, (tuple, list)) and labels:
        labels = labels[0]
    if not isinstance(labels, torch.Tensor) or labels.layout != torch.strided:
        return ""
    some = labels.detach().reshape(-1)[:_SAMPLED].cpu().contiguous().view(torch.uint8)
    return f"{labels.dtype} {list(labels.shape)}|{hashlib.sha256(some.numpy()).hexdigest()}"


class StageOfRanks:
    """This process's place in a pipeline, and how it reaches the others."""

    def __init__(self, module: PipelineModule):
        self.world = ranks.join()
        self.stage, self.stages = module.stage_id, module.num_stages
        data = self.world.world // self.stages
        self.data: Ranks = self.world
        self.stages_of_data: Ranks | None = None
        if self.stages > 1:
            own = [stage * data + module.data_id for stage in range(self.stages)]
            self.data = self.world.part([self.stage * data + it for it in range(data)])
            self.stages_of_data = self.world.part(own)

    @property
    def among(self) -> ranks.StageRanks | None:
        if self.stages_of_data is None:
            return None
        return ranks.StageRanks(self.data, self.stages_of_data)

    def texts(self, text: str) -> list[str]:
        """The text of each stage, from the ranks with this rank's part of the data."""
        return [text] if self.stages_of_data is None else ranks.gather_long(self.stages_of_data, text)

    def fail(self, error: BaseException) -> None:
        if self.world.world > 1:
            self.world.abort(f"rank {self.world.rank}: {type(error).__name__}: {error}")


def make_engine(
    module: PipelineModule, config: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[Engine, StageOfRanks]:
    """The engine of this stage's layers. An error on one stage ends all."""
    place = StageOfRanks(module)
    config, overrides = dict(config), dict(overrides)
    section = config.pop("pipeline", None)
    interval = section.get("activation_checkpoint_interval") if isinstance(section, dict) else None
    if interval:  # it takes precedence, as in DeepSpeed
        module.activation_checkpoint_interval = int(interval)
    run = config.get("run")
    folder = run.get("dir") if isinstance(run, dict) else None
    if folder and place.stage > 0:  # each stage has a folder
        overrides["run.dir"] = os.path.join(folder, f"stage-{place.stage}")
    try:
        engine = Engine(
            module,
            config,
            units=lambda name, _: name.isdigit(),
            overrides=overrides,
            among=place.among,
        )
    except BaseException as error:
        place.fail(error)
        raise
    return engine, place


class PipelineEngine(DeepSpeedEngine):
    """Made by :func:`sluice.deepspeed.initialize` from a :class:`PipelineModule`. Other attributes
    are the module's, which has this stage's layers."""

    def __init__(
        self,
        engine: Engine,
        place: StageOfRanks,
        data: Any = None,
        collate: Callable | None = None,
    ):
        self._place = place
        super().__init__(engine, data, collate)
        module = engine.module
        assert isinstance(module, PipelineModule)
        self.global_rank = place.world.rank
        self.world_size = place.world.world
        self.dp_world_size = engine.world_size
        self.stage_id, self.num_stages = place.stage, place.stages
        self.grid = module.mpu()
        self.is_pipe_parallel, self.is_data_parallel = place.stages > 1, self.dp_world_size > 1
        self.micro_batches = engine.micro_batches
        self.micro_batch_size = self.train_micro_batch_size_per_gpu()
        self.batch_fn: Callable[[Any], Any] | None = None
        self.data_iterator: Iterator[Any] | None = None
        self._warned = False  # of different labels
        self.agg_train_loss: torch.Tensor | None = None
        if self.training_dataloader is not None:
            self.set_dataloader(RepeatingLoader(self.training_dataloader))
        links = {
            stage: Link(place.stages_of_data, stage, engine.device)
            for stage in range(place.stages)
            if place.stages_of_data is not None and stage != place.stage
        }
        self._tied = TiedExchange(module, engine, links)
        self._passes = StagePasses(
            module, engine, links.get(place.stage - 1), links.get(place.stage + 1), self._tied
        )

    # ---- the pipeline

    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        return self.stage_id == self.num_stages - 1

    def get_pipeline_parallel_rank(self) -> int:
        return self.stage_id

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """Trains on gradient_accumulation_steps() micro-batches of the iterator, or of the training
        data: pairs of inputs (a tensor or a tuple) and labels. The first stage uses the inputs, the
        last one the labels. Returns the mean loss over all micro-batches and ranks, on all ranks.

        Raises:
            StopIteration: the iterator has ended, on some rank.
            RefusedError: it ended within the batch, or a micro-batch has another form. All ranks
                raise it, before anything is computed.
        """
        if not torch.is_grad_enabled():
            raise RefusedError("train_batch() needs gradients: call eval_batch() under no_grad()")
        if data_iter is not None:
            self.set_dataiterator(data_iter)
        batch = self._draw(self.data_iterator, self.engine.micro_batches)
        self.module.train()
        try:
            done = self._passes.train(batch, self._of_last_stage)
        except NonFiniteGradientError:  # raised on all ranks
            raise
        except BaseException as error:
            self._place.fail(error)
            if self._place.world.world == 1:
                self.engine.abandon()
            raise
        self._say(done)
        self.agg_train_loss = torch.tensor(done.loss, device=self.device)
        return self.agg_train_loss

    def eval_batch(
        self,
        data_iter: Iterator[Any] | None,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """The mean loss of as many micro-batches as a step has, or `num_micro_batches`, over all
        data ranks: on all stages, or without `bcast_loss` on the last one alone. `reduce_output`
        None: a list of this rank's losses. `return_logits`: (loss, the last micro-batch's outputs);
        `compute_loss` False: outputs in place of losses. Outputs are on the last stage."""
        if reduce_output not in ("avg", None):
            raise RefusedError(f'eval_batch(reduce_output="{reduce_output}") is not supported: "avg"')
        count = self.engine.micro_batches if num_micro_batches is None else num_micro_batches
        batch = self._draw(data_iter, count)
        self.module.eval()
        try:
            results, outputs = self._passes.evaluate(batch, count, compute_loss)
            result: Any = results if self.is_last_stage() else None
            if compute_loss:
                result = self._reduced(results, reduce_output, bcast_loss)
        except BaseException as error:
            self._place.fail(error)
            raise
        return (result, outputs[-1] if outputs else None) if return_logits else result

    def _reduced(self, losses: list[torch.Tensor], reduce: str | None, bcast: bool) -> Any:
        if reduce is None:
            return losses if self.is_last_stage() else None
        mean = sum(float(loss) for loss in losses) / max(len(losses), 1)
        of_data = [float(text) for text in self._place.data.all_gather(repr(mean))]
        mean = sum(of_data) / len(of_data)
        mean = json.loads(self._place.texts(json.dumps(mean))[-1])
        return torch.tensor(mean, device=self.device) if bcast or self.is_last_stage() else None

    def _of_last_stage(self, losses: Sequence[float]) -> list[float]:
        return json.loads(self._place.texts(json.dumps(list(losses)))[-1])

    # ---- data

    def reset_activation_shape(self) -> None:
        """Does nothing: shapes are sent again when they change."""

    def set_dataloader(self, loader: Any) -> None:
        """Micro-batches for train_batch() without an iterator."""
        self.training_dataloader = loader
        self.data_iterator = iter(loader)

    def set_dataiterator(self, iterator: Iterator[Any] | None) -> None:
        self.data_iterator = iterator

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """A function of what the iterator returns, which returns (inputs, labels)."""
        self.batch_fn = fn

    def _draw(self, iterator: Iterator[Any] | None, count: int) -> list[Any]:
        """The micro-batches of a batch, on the first and the last stage. All ranks raise what one
        has to refuse, before anything is computed."""
        batch: list[Any] = []
        refusal = ""
        if self.is_first_stage() or self.is_last_stage():
            try:
                for _ in range(count):
                    batch.append(self._next(iterator))
            except StopIteration:
                refusal = "end" if not batch else (
                    f"the iterator ended after {len(batch)} of the {count} micro-batches of a batch:"
                    " make its length a multiple, or use RepeatingLoader"
                )
            except Exception as error:
                refusal = f"{type(error).__name__}: {error}"
                if self._place.world.world == 1:
                    raise
        self._raise_together(refusal, _mark_of(batch) if self.num_stages > 1 else "")
        return batch

    def _raise_together(self, refusal: str, mark: str) -> None:
        if self._place.world.world > 1:
            of_all = self._place.world.all_gather(json.dumps([refusal, mark]))
            texts, marks = zip(*map(json.loads, of_all))
            self._warn_of_other_labels(marks)
            number = next((it for it, text in enumerate(texts) if text), None)
            if number is None:
                return
            refusal = texts[number]
            if refusal != "end":
                raise RefusedError(f"rank {number}: {refusal}")
        if refusal == "end":
            raise StopIteration("the iterator of train_batch() has ended")
        if refusal:
            raise RefusedError(refusal)

    def _warn_of_other_labels(self, marks: Sequence[str]) -> None:
        data = self.dp_world_size
        for first, last in zip(marks[:data], marks[-data:]):
            form, _, values = first.partition("|")
            form_of_last, _, values_of_last = last.partition("|")
            is_other = form == form_of_last and values != values_of_last
            if is_other and not self._warned and self.global_rank == 0:
                _log.warning(
                    "the first and the last stage draw different labels, so inputs and labels may"
                    " not belong together: shuffle with a generator of the loader's own, because"
                    " stages use torch's differently"
                )
            self._warned = self._warned or is_other

    def _next(self, iterator: Iterator[Any] | None) -> tuple[Any, Any]:
        if iterator is None:
            raise RefusedError(
                "there is no data: pass an iterator, training_data= to initialize(), or"
                " set_dataloader()"
            )
        drawn = next(iterator)
        if self.batch_fn is not None:
            drawn = self.batch_fn(drawn)
        if not isinstance(drawn, (tuple, list)) or len(drawn) != 2:
            raise RefusedError(
                "a micro-batch must be a pair, (inputs, labels), with inputs a tensor or a tuple:"
                f" this one is {type(drawn).__name__}"
                + (f" of {len(drawn)}" if isinstance(drawn, (tuple, list)) else "")
                + ". set_batch_fn() can change it"
            )
        inputs = self._passes.as_computed(drawn[0]) if self.is_first_stage() else None
        return inputs, drawn[1]

    def deepspeed_io(
        self, dataset: Any, batch_size: int | None = None, collate_fn: Callable | None = None
    ) -> DataLoader:
        """A loader of a dataset's micro-batches, in its order. All stages draw the same ones."""
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise RefusedError(
                "training_data is an iterable: pass train_batch() an iterator of the micro-batches"
                " of this rank's part of the data"
            )
        return DataLoader(
            dataset,
            batch_size=batch_size or self.train_micro_batch_size_per_gpu(),
            sampler=DistributedSampler(
                dataset, self.engine.world_size, self.engine.rank, shuffle=False
            ),
            collate_fn=collate_fn,
        )

    # ---- checkpoints

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: Any = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Each stage saves its layers into SAVE_DIR/TAG/stage-N. Any number of stages can load it.
        All ranks must call it."""
        checkpoints.save(self, os.fspath(save_dir), tag, client_state, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint of any number of stages and ranks."""
        if custom_load_fn is not None or load_module_only:
            raise RefusedError(
                "load_checkpoint() of a pipeline loads the whole state: custom_load_fn and"
                " load_module_only are not supported"
            )
        if not (load_optimizer_states and load_lr_scheduler_states):
            raise RefusedError("load_optimizer_states and load_lr_scheduler_states cannot be False")
        found = checkpoints.load(self, os.fspath(load_dir), tag)
        self._tied.values_changed()
        return found

    @property
    def place(self) -> StageOfRanks:
        return self._place

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        if self.num_stages > 1:
            raise RefusedError(
                "save_16bit_model() writes one file, and each of several stages has its layers: call"
                " engine.engine.save_weights(path) with a path for each stage"
            )
        return super().save_16bit_model(save_dir, save_filename, exclude_frozen_parameters)

    def load_state_dict(self, state: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        super().load_state_dict(state, strict)
        self._tied.values_changed()

    # ---- what belongs to engines without stages

    def _only_batches(self, *_: Any, **__: Any) -> NoReturn:
        raise RefusedError(
            "a pipeline's passes belong together: call train_batch() or eval_batch() in place of"
            " forward(), backward() and step()"
        )

    __call__ = forward = backward = step = _only_batches  # type: ignore[assignment]
