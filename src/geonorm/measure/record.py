"""The calls of the blocks of a model, and of the modules inside them, in one pass over random ids."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..modes import evaluating

TOKENS = (2, 12)
"""Sequences and their length in the pass that is recorded."""


class Refused(ConfigError):
    """A model whose rule is none that is known, with what was seen."""


@dataclass(eq=False)
class ModuleCall:
    """One call of a module inside a block, at the top of the block's own forward; or of a block."""

    path: str
    module: nn.Module
    arguments: dict[str, Any]
    """By name, without the tensor that comes first."""
    handed: Tensor
    """The tensor that comes first, which the block may have changed since."""
    x: Tensor
    """Its copy."""
    y: Any = None
    """The first tensor that it returned, as it was then."""
    result: Any = None


@dataclass(eq=False)
class BlockCall(ModuleCall):
    """One call of a block, with those of its modules in the order in which they began."""

    calls: list[ModuleCall] = field(default_factory=list)
    dropouts: dict[int, float] = field(default_factory=dict)
    """Probability of the functional dropout on a tensor, by the tensor's id."""


def bind(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor | None, dict[str, Any]]:
    """The first tensor that a module is handed, and its other arguments by name."""
    names = list(inspect.signature(module.forward).parameters)
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    first = names[0] if names and names[0] in arguments else "hidden_states"
    x = arguments.pop(first, None)
    return (x if isinstance(x, Tensor) else None), arguments


def first_of(result: Any) -> Any:
    """A copy of the first tensor that a module returned, since the block may change it in place."""
    first = result[0] if isinstance(result, tuple) else result
    return first.detach().clone() if isinstance(first, Tensor) else first


class Recorder:
    """Records every call of some blocks while it is hooked to them. Of calls within calls the outermost alone."""

    def __init__(self) -> None:
        self.passes: list[BlockCall] = []
        self.running: list[Any] = []
        """The calls that have begun, from the block on; None for one that is within another."""

    def begin(self, path: str, is_block: bool, module: nn.Module, args: Any, kwargs: Any) -> None:
        x, arguments = bind(module, args, kwargs)
        call: Any = None
        if x is not None and is_block and not self.running:
            call = BlockCall(path, module, arguments, x, x.detach().clone())
            self.passes.append(call)
        elif x is not None and len(self.running) == 1:
            call = ModuleCall(path, module, arguments, x, x.detach().clone())
            self.running[0].calls.append(call)
        if self.running or call is not None:
            self.running.append(call)

    def end(self, _: nn.Module, __: Any, result: Any) -> None:
        if self.running and (call := self.running.pop()) is not None:
            call.result, call.y = result, first_of(result)

    def dropout(self, x: Tensor, p: float = 0.5, *rest: Any, **more: Any) -> Tensor:
        if len(self.running) == 1 and p:
            self.running[0].dropouts[id(x)] = p
        return torch.dropout(x, p, more.get("training", rest[0] if rest else True))


@contextmanager
def record_blocks(blocks: Mapping[str, nn.Module]) -> Iterator[list[BlockCall]]:
    """Every call of the blocks inside, in order."""
    recorder, dropout = Recorder(), F.dropout
    with ExitStack() as hooks:
        for path, block in blocks.items():
            for inner, module in block.named_modules():
                begin = partial(recorder.begin, inner or path, not inner)
                hooks.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(recorder.end).remove)
        hooks.callback(setattr, F, "dropout", dropout)
        F.dropout = recorder.dropout  # type: ignore[assignment]
        yield recorder.passes


@contextmanager
def record_others(model: nn.Module, blocks: Mapping[str, nn.Module]) -> Iterator[list[ModuleCall]]:
    """Every call of the modules outside of the blocks that have no children."""
    inside = {id(part) for block in blocks.values() for part in block.modules()}
    calls: list[ModuleCall] = []

    def note(path: str, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        x, arguments = bind(module, args, kwargs)
        if x is not None and x.is_floating_point():
            calls.append(ModuleCall(path, module, arguments, x, x.detach().clone(), first_of(result), result))

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if id(module) not in inside and not list(module.children()):
                hooks.callback(module.register_forward_hook(partial(note, path), with_kwargs=True).remove)
        yield calls


def block_lists(model: nn.Module) -> Iterator[tuple[str, nn.ModuleList]]:
    """Lists of modules that lie in no other list."""
    outer = ""
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and not (outer and path.startswith(f"{outer}.")):
            outer = path
            yield path, module


@torch.no_grad()
def record_pass(model: nn.Module) -> tuple[list[BlockCall], list[ModuleCall]]:
    """The calls of blocks in one pass over random ids, and those of the modules outside of them."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        raise Refused(f"{type(model).__name__} has no residual sub-layers that are known, and reads no ids")
    device = next((p.device for p in model.parameters() if not p.is_meta), torch.device("cpu"))
    ids = torch.randint(3, max(4, vocabulary - 4), TOKENS, generator=torch.Generator().manual_seed(0)).to(device)
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0  # so that modules are handed a mask
    blocks = {f"{path}.{name}": block for path, blocks in block_lists(model) for name, block in blocks.named_children()}
    try:
        with record_others(model, blocks) as others, record_blocks(blocks) as passes, evaluating(model):
            model(input_ids=ids, attention_mask=mask, use_cache=True)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise Refused(f"{type(model).__name__} takes no ids alone ({reason})") from None
    return passes, others
