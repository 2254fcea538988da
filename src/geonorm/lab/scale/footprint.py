"""What one micro-batch keeps in memory, part by part of a model: its own code, run on tensors without storage.

Nothing is typed in about a scheme or a layer: forward and backward pass of the entry, of every different block and of
the head run on PyTorch's fake tensors while the bytes of all live storages are counted. The sizes are those of
PyTorch's CPU operators in eager mode. A GPU's fused RMSNorm keeps one copy of the stream less per norm; torch.compile
keeps less again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...nn.attention import SelfAttention
from ...nn.decoder import Decoder
from ...residual import Residual


@dataclass(frozen=True)
class Piece:
    """A part of the model at one size of batch."""

    weights: int
    """Number of its parameters."""
    width: int
    """Bytes of a parameter as its pass sees it."""
    stream: int
    """Bytes of the residual stream that enters it."""
    saved: int
    """Bytes that its forward pass keeps for the backward pass: its input and casts of its weights included."""
    forward: int
    """Most bytes that its forward pass holds at once, its input included."""
    backward: int
    """Most bytes that its backward pass holds at once beyond `saved`, the gradients of its weights included."""

    def with_recomputation(self) -> Piece:
        """The same under activation checkpointing: only the input is kept, the backward pass makes the rest again."""
        again = self.saved - self.stream + self.backward
        return Piece(self.weights, self.width, self.stream, self.stream, self.forward, again)

    def at(self, batch: int, double: Piece) -> Piece:
        """The same for any batch, when this is for one sequence and `double` for two: bytes are linear in the batch."""

        def line(name: str) -> int:
            one, two = getattr(self, name), getattr(double, name)
            return int(one + (batch - 1) * (two - one))

        return Piece(self.weights, self.width, *(line(name) for name in ("stream", "saved", "forward", "backward")))


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, from their making to their end; not those of `given`."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            if (key := storage._cdata) not in self.known:
                self.known.add(key)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.gone, key, storage.nbytes())
        return out

    def gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def without(model: Decoder, **others: nn.Module | None) -> Decoder:
    """The same decoder, its modules shared, with others in the place of some."""
    shell = copy(model)
    shell._modules = {**model._modules, **others}
    return shell


def entry(model: Decoder) -> nn.Module:
    """What stands before the blocks: from ids to the stream."""
    head = nn.Identity()
    head.register_buffer("weight", torch.empty(0))
    return without(model, blocks=nn.ModuleList(), exit=nn.Identity(), transform=None, head=head, logits_slot=None)


class Head(nn.Module):
    """What follows the blocks: exit, head and cross entropy, on the stream."""

    def __init__(self, model: Decoder, targets: Tensor) -> None:
        super().__init__()
        start = {"embed": nn.Identity(), "position": None, "embed_norm": None, "entry": nn.Identity()}
        self.model = without(model, **start, blocks=nn.ModuleList())
        self.targets = targets

    def forward(self, stream: Tensor) -> Tensor:
        return self.model.loss(stream, self.targets)


@dataclass(frozen=True)
class Conditions:
    """How the passes run: the dtype in which blocks and head see their weights, autocast around the forward pass or
    none, and whether gradients are added to buffers that exist already, as in accumulation."""

    weights: torch.dtype
    precision: Callable[[], AbstractContextManager[object]]
    adding: bool


def footprint(model: Decoder, batch: int, conditions: Conditions) -> list[Piece]:
    """The pieces of a model on the meta device in order, entry, blocks, head, for a micro-batch of `batch` sequences.
    Embedding, entry and exit see their weights in fp32."""
    c, shape = conditions, model.config
    pieces: dict[str, Piece] = {}
    keys: list[str] = []
    with FakeTensorMode():
        ids = torch.zeros(batch, shape.context, dtype=torch.long)
        turns = None if model.rotary is None else model.rotary(torch.arange(shape.context))
        start = entry(model)
        first = run_part(start, ids, {}, c, set())
        with torch.no_grad(), c.precision():
            stream = functional_call(start, stand_ins(start, c, set()), (ids,))
        for block in model.blocks:
            # blocks that do the same with tensors of the same shapes are counted once
            schemes = [str(module.scheme) for module in block.modules() if isinstance(module, Residual)]
            windows = [module.window for module in block.modules() if isinstance(module, SelfAttention)]
            keys.append(repr((schemes, windows, [(name, tuple(p.shape)) for name, p in block.named_parameters()])))
            if keys[-1] not in pieces:
                cast = set(dict(block.named_parameters()))
                values = shape_of_values(block, batch, shape.context)
                pieces[keys[-1]] = run_part(block, stream, {"positions": turns}, c, cast, values)
        head = Head(model, ids)
        cast = {name for name, p in head.named_parameters() if p is model.head.weight and not shape.tied}
        last = run_part(head, stream, {}, c, cast)
    return [first, *(pieces[key] for key in keys), last]


def stand_ins(module: nn.Module, conditions: Conditions, cast: set[str]) -> dict[str, Tensor]:
    """Tensors without storage on the CPU for a module's own on the meta device, by name. `cast` are the parameters that
    the pass sees in the dtype of the conditions."""
    tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in module.named_buffers()}
    for name, parameter in module.named_parameters():
        dtype = conditions.weights if name in cast else parameter.dtype
        tensors[name] = torch.empty(parameter.shape, dtype=dtype, requires_grad=True)
        if conditions.adding:
            tensors[name].grad = torch.empty_like(tensors[name])
    return tensors


def shape_of_values(block: nn.Module, batch: int, context: int) -> tuple[int, ...] | None:
    """What a block is handed beside the stream for its values, or None."""
    found = [m for m in block.modules() if isinstance(m, SelfAttention) and m.mix is not None]
    return (batch, context, found[0].groups * found[0].head_dim) if found else None


def run_part(
    module: nn.Module,
    given: Tensor,
    others: dict[str, Any],
    conditions: Conditions,
    cast: set[str],
    values: tuple[int, ...] | None = None,
) -> Piece:
    """Forward and backward pass of a part of the model, counted. values: the shape of those that it is handed."""
    tensors = stand_ins(module, conditions, cast)
    gradients = [tensor.grad for tensor in tensors.values() if tensor.grad is not None]
    with Live([given, *tensors.values(), *gradients, *(t for t in tree_leaves(others) if t is not None)]) as live:
        # the stream is made here, so that it lives as long as the pass keeps it and no longer
        entering = given.detach().requires_grad_() * 1.0 if given.is_floating_point() else given
        if values is not None:
            others = {**others, "values": torch.empty(values, requires_grad=True) * 1.0}
        stream = live.now
        with conditions.precision():
            out = functional_call(module, tensors, (entering,), others)
        forward = live.peak
        every = out if isinstance(out, tuple) else (out,)
        end = sum((part * 1.0).sum() for part in every)  # their gradients are made and dropped as in the whole model
        del out, every, entering, others
        saved = live.peak = live.now
        end.backward()
        backward = live.peak - saved
    width = conditions.weights.itemsize if cast else 4
    return Piece(sum(p.numel() for p in module.parameters()), width, stream, saved, forward, backward)
