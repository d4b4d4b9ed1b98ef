"""Whether the engine's own units can compute a module: it must be exactly a class of transformers
that a family supports, built as transformers builds it."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ._core import Error, Family, is_spilled, module_classes

# By model_type: the class, and the keys of its config that the family reads or checks.
_CLASSES = module_classes()
_MODELS = "transformers.models."
# All of them compute causal attention; they differ in rounding.
_ATTENTION = {"eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}
READ = {"architectures", "dtype", "model_type", "quantization_config", "torch_dtype"}.union(
    *(keys for _, keys in _CLASSES.values())
)
# Config keys that do not affect the loss of a causal language model.
_HARMLESS = set(
    "_name_or_path attn_implementation bos_token_id chunk_size_feed_forward eos_token_id id2label"
    " initializer_range keys_to_ignore_at_inference label2id n_ctx name_or_path num_labels"
    " output_attentions output_hidden_states pad_token_id pretraining_tp problem_type return_dict"
    " summary_activation summary_first_dropout summary_proj_to_labels summary_type"
    " summary_use_proj task_specific_params transformers_version use_cache use_return_dict".split()
)
_MUST_BE_OFF = {"use_mrope"}
# Attributes of modules that passes do not read, or that are compared separately.
OWN = {
    "training",
    "gradient_checkpointing",
    "name_or_path",
    "padding_idx",
    "max_seq_len_cached",
    "vocab_size",
}
SCALARS = (bool, int, float, str, type(None))


class NotOfAFamily(Exception):
    """The reason, as a clause."""


def blocks_of(model: nn.Module) -> nn.ModuleList:
    base = model.get_submodule(model.base_model_prefix)  # type: ignore[arg-type]
    return base.h if hasattr(base, "h") else base.layers  # type: ignore[return-value]


def padding_row(model: nn.Module) -> int:
    """The token whose embedding row gets no gradient from lookups; -1 if there is none."""
    row = model.get_input_embeddings().padding_idx  # type: ignore[operator]
    return -1 if row is None else int(row)


def family_of(model: nn.Module) -> Family:
    """The family that computes the module. Raises NotOfAFamily."""
    _check_class(model)
    _check_parts(model)
    family = _read(model.config)
    _check_parameters(model, family)
    _check_twin(model)
    # Values that sluice.init() holds are on the drives or do not exist yet; meta tensors have none.
    if not any(
        parameter.is_meta or is_spilled(parameter) or 0 in parameter.stride()
        for parameter in model.parameters()
    ):
        _check_logits(model, family)
    _check_rotary(model)
    return family


def _check_class(model: nn.Module) -> None:
    kind = type(model)
    config: Any = getattr(model, "config", None)
    wanted, _ = _CLASSES.get(str(getattr(config, "model_type", None)), (None, []))
    where = type(config).__module__.replace(".configuration_", ".modeling_")
    if (kind.__module__, kind.__name__) != (where, wanted) or not where.startswith(_MODELS):
        known = ", ".join(sorted({name for name, _ in _CLASSES.values()}))
        raise NotOfAFamily(f"the engine has no units for {kind.__qualname__}, only for {known}")
    if getattr(config, "_attn_implementation", None) not in _ATTENTION:
        raise NotOfAFamily(f"its attention implementation is {config._attn_implementation}")


def named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, part in model.named_modules():
        yield name or "the module itself", part


def _check_parts(model: nn.Module) -> None:
    if not callable(getattr(model, "forward", None)):
        raise NotOfAFamily("it has no forward")
    for name, part in named(model):
        kind = type(part)
        home = kind.__module__.split(".", 1)[0]
        if home not in ("torch", "transformers"):
            raise NotOfAFamily(f"{name} is a {kind.__module__}.{kind.__qualname__}")
        if "forward" in part.__dict__ or "__call__" in part.__dict__:
            raise NotOfAFamily(f"the forward of {name} was replaced")
        for method in (kind.forward, kind.__call__):
            if getattr(method, "__module__", home).split(".", 1)[0] not in (
                "torch",
                "transformers",
            ):
                raise NotOfAFamily(f"the forward of {kind.__qualname__} was replaced")
        if getattr(part, "_compiled_call_impl", None) is not None:
            raise NotOfAFamily(f"{name} was compiled")
    hooked = find_hook(model, frozenset())
    if hooked is not None:
        raise NotOfAFamily(f"{hooked} has hooks")
    own, usual = loss_functions(model)
    if own is not None or not usual.__module__.startswith("transformers."):
        raise NotOfAFamily("its loss_function was replaced")


def loss_functions(model: nn.Module) -> tuple[Any, Any]:
    """The loss function set on the model, if any, and transformers' own."""
    usual = sys.modules["transformers.loss.loss_utils"].LOSS_MAPPING["ForCausalLM"]
    return model.__dict__.get("_loss_function"), usual


def find_hook(model: nn.Module, known: frozenset[int]) -> str | None:
    """The name of the first module or parameter with hooks that are not the engine's."""
    of_torch = torch.nn.modules.module
    if (
        of_torch._global_forward_hooks
        or of_torch._global_forward_pre_hooks
        or of_torch._global_backward_hooks
        or of_torch._global_backward_pre_hooks
    ):
        return "every module (a global hook, such as register_module_forward_hook())"
    for name, part in model.named_modules():
        for hooks in (
            part._forward_hooks,
            part._forward_pre_hooks,
            part._backward_hooks,
            part._backward_pre_hooks,
        ):
            if hooks and not known.issuperset(hooks):
                if not all(key in known or _is_harmless(hook) for key, hook in hooks.items()):
                    return name or "the module itself"
    return None


def _is_harmless(hook: Any) -> bool:
    """Whether it is the hook of transformers' gradient_checkpointing_enable(), which only marks a
    tensor as requiring a gradient."""
    name = getattr(hook, "__qualname__", "")
    return hook.__module__.startswith("transformers.") and "enable_input_require_grads" in name


def _read(config: Any) -> Family:
    own = json.loads(config.to_json_string(use_diff=False))
    usual = json.loads(type(config)().to_json_string(use_diff=False))
    for key, value in own.items():
        if key in READ or key in _HARMLESS or (key in _MUST_BE_OFF and not value):
            continue
        if key not in usual or usual[key] != value:
            raise NotOfAFamily(f"its config has {key}={value!r}, which the engine does not support")
    try:
        return Family(json.dumps(own))
    except Error as error:
        raise NotOfAFamily(str(error)) from error


def _check_parameters(model: nn.Module, family: Family) -> None:
    for name, parameter in model.named_parameters():
        if ".experts." in name and parameter.dim() == 3:
            raise NotOfAFamily(
                f"{name} has all experts of a block, and the engine's units have a parameter for"
                " each expert"
            )
    wanted = {name: tuple(shape) for _, unit in family.units for name, shape in unit}
    for name, parameter in model.named_parameters():
        if wanted.pop(name, None) != tuple(parameter.shape):
            raise NotOfAFamily(f"the family has no parameter {name} of this shape")
        if not parameter.requires_grad:
            raise NotOfAFamily(f"{name} is frozen")
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise NotOfAFamily(f"{name} has hooks")
    if wanted:
        raise NotOfAFamily(f"it lacks the parameter {next(iter(wanted))}")


def _scalars(part: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in part.__dict__.items()
        if isinstance(value, SCALARS) and not key.startswith("_") and key not in OWN
    }


def _check_twin(model: nn.Module) -> None:
    """Compares the model with one built from its config: same parts, same numbers."""
    try:
        with torch.device("meta"):
            twin = type(model)(copy.deepcopy(model.config))
    except Exception as error:
        raise NotOfAFamily(f"no model can be made from its config: {error}") from error
    parts = dict(named(model))
    for name, other in named(twin):
        part = parts.pop(name, None)
        if type(part) is not type(other):
            raise NotOfAFamily(f"{name} is a {type(part).__qualname__}")
        assert part is not None
        own = part.__dict__
        for key, value in _scalars(other).items():
            if own.get(key, value) != value:
                raise NotOfAFamily(
                    f"{key} of {name} is {own[key]!r}, and its config says {value!r}"
                )
    if parts:
        raise NotOfAFamily(
            f"it has a module {next(iter(parts))} that a model made from its config does not have"
        )


def _check_rotary(model: nn.Module) -> None:
    """Compares rotary tables with those built from the config. The logits of a few tokens do not
    show small differences in them."""
    for name, part in named(model):
        tables = {
            key: table
            for key, table in part._buffers.items()
            if key.endswith("inv_freq") and table is not None and not table.is_meta
        }
        # Each pass sets it anew, from its length; original_inv_freq stays.
        if getattr(part, "rope_type", "") == "longrope":
            tables.pop("inv_freq", None)
        if not tables:
            continue
        try:
            with torch.device("cpu"):
                twin = type(part)(config=part.config)
        except Exception as error:
            raise NotOfAFamily(f"{name} cannot be made from its config: {error}") from error
        for key, table in tables.items():
            usual = twin._buffers[key]
            assert usual is not None
            if usual.shape != table.shape or not _are_near(usual.to(table.dtype), table.cpu()):
                raise NotOfAFamily(
                    f"{key} of {name} differs from the frequencies that its config gives"
                )


def _are_near(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal up to the rounding of another device, on which they may have been computed."""
    return torch.allclose(one, other, rtol=1e-6, atol=0)


def _check_logits(model: nn.Module, family: Family) -> None:
    """Compares the logits of a few tokens from both."""
    parameters = dict(model.named_parameters())
    values = [[parameters[name].detach() for name, _ in unit] for _, unit in family.units]
    first = values[0][0]
    length = min(family.context, 12)
    tokens = (torch.arange(length)[None] * 7919 % family.vocab).to(first.device)
    modes = [(part, part.training) for part in model.modules() if part.training]
    config: Any = model.config
    attention = config._attn_implementation
    try:
        if attention not in ("eager", "sdpa"):  # others may need a GPU or a compiler
            config._attn_implementation = "sdpa"
        for part, _ in modes:
            part.training = False
        with torch.no_grad():
            expected = model(input_ids=tokens, use_cache=False).logits.double()
            found = family.logits(
                [[tensor.contiguous() for tensor in unit] for unit in values], tokens
            )
    except Exception as error:
        raise NotOfAFamily(
            f"its logits could not be compared with the engine's: {error}"
        ) from error
    finally:
        if config._attn_implementation != attention:
            config._attn_implementation = attention
        for part, training in modes:
            part.training = training
    off = (found.double() - expected).square().mean().sqrt().item()
    scale = expected.square().mean().sqrt().item()
    share = 1e-3 if first.dtype in (torch.float32, torch.float64) else 0.1
    if not off <= share * scale + 1e-6:
        raise NotOfAFamily(
            f"its logits differ from the engine's by {off:.2g} (RMS), where they are {scale:.2g}"
        )
