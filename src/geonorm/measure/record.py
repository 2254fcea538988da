"""Records the calls of the blocks of a model, and of the modules inside them, in one pass over random ids."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError, explained
from ..modes import evaluating

TOKENS = (2, 12)
"""Sequences and their length in the pass that is recorded."""


class Refused(ConfigError):
    """The residual rule of a model is not one that is known; the message says what was seen."""


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
    x = arguments.pop(names[0] if names and names[0] in arguments else "hidden_states", None)
    return (x if isinstance(x, Tensor) else None), arguments


class Recorder:
    """Records the calls of some blocks, with those of the modules inside them, and of the modules outside that have no
    children. Of calls within calls the outermost alone."""

    def __init__(self) -> None:
        self.passes: list[BlockCall] = []
        self.others: list[ModuleCall] = []
        self.running: list[Any] = []
        """The calls that have begun, from the block on; None for one that is within another."""

    def begin(self, path: str, is_block: bool, module: nn.Module, args: Any, kwargs: Any) -> None:
        x, arguments = bind(module, args, kwargs)
        call: Any = None
        if x is not None and len(self.running) < 2:
            kind, calls = (BlockCall, self.passes) if is_block else (ModuleCall, self.others)
            kind, calls = (ModuleCall, self.running[0].calls) if self.running else (kind, calls)
            call = kind(path, module, arguments, x, x.detach().clone())
            calls.append(call)
        self.running.append(call)

    def end(self, _: nn.Module, __: Any, result: Any) -> None:
        if (call := self.running.pop()) is not None:
            first = result[0] if isinstance(result, tuple | list) else result
            # a copy, since the block may change it in place
            call.result, call.y = result, first.detach().clone() if isinstance(first, Tensor) else first

    def dropout(self, x: Tensor, p: float = 0.5, *rest: Any, **more: Any) -> Tensor:
        if p and len(self.running) == 1 and isinstance(self.running[0], BlockCall):
            self.running[0].dropouts[id(x)] = p
        return torch.dropout(x, p, more.get("training", rest[0] if rest else True))

    @contextmanager
    def watching(self, model: nn.Module, blocks: Mapping[str, nn.Module]) -> Iterator[None]:
        places = {
            id(part): (inner or path, not inner) for path, b in blocks.items() for inner, part in b.named_modules()
        }
        dropout = F.dropout
        with ExitStack() as hooks:
            for path, module in model.named_modules():
                if id(module) in places or not list(module.children()):
                    begin = partial(self.begin, *places.get(id(module), (path, False)))
                    hooks.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
                    hooks.callback(module.register_forward_hook(self.end).remove)
            hooks.callback(setattr, F, "dropout", dropout)
            F.dropout = self.dropout  # type: ignore[assignment]
            yield


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
    recorder = Recorder()
    refused = explained(f"{type(model).__name__} takes no ids alone", Refused, Exception)
    with refused, recorder.watching(model, blocks), evaluating(model):
        model(input_ids=ids, attention_mask=mask, use_cache=True)
    return recorder.passes, recorder.others
