"""The memory of one micro-batch, part by part of a model: its own code, run on tensors without storage.

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
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..models.attention import Rope, SelfAttention
from ..models.decoder import Decoder
from ..residual import Residual


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
    block: bool = False
    """True for a block, of which recomputation keeps the input alone."""

    def with_recomputation(self) -> Piece:
        """The same under activation checkpointing: of a block only the input is kept, the backward pass makes the rest
        again."""
        again = self.saved - self.stream + self.backward
        return replace(self, saved=self.stream, backward=again) if self.block else self

    def at(self, batch: int, size: int, double: Piece) -> Piece:
        """The same for any batch on the line through this, for `size` sequences, and `double`, for twice as many."""

        def line(name: str) -> int:
            one, two = getattr(self, name), getattr(double, name)
            return int(one + (batch - size) * (two - one) / size)

        stream, saved, forward, backward = map(line, ("stream", "saved", "forward", "backward"))
        return replace(self, stream=stream, saved=saved, forward=forward, backward=backward)


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, from their making to their end; not those of `existing`."""

    def __init__(self, existing: list[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in existing}

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


def replace_modules(model: Decoder, **others: nn.Module | None) -> Decoder:
    """The same model, its modules shared, with others in the place of some."""
    shell = copy(model)
    shell._modules = {**model._modules, **others}
    return shell


class Front(nn.Module):
    """The part before the blocks: from ids to the stream."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        behind = ("blocks", "exit", "transform", "head", "logits_slot", "entry")
        self.model = replace_modules(model, **dict.fromkeys(behind))
        self.entry = model.entry

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.entry(self.model.begin(inputs)[0])
        return out


class Head(nn.Module):
    """The part behind the blocks: exit, head and cross entropy, on the stream."""

    def __init__(self, model: Decoder, targets: Tensor) -> None:
        super().__init__()
        start = ("embed", "position", "embed_norm", "values", "entry", "blocks")
        self.model = replace_modules(model, **dict.fromkeys(start))
        self.targets = targets

    def forward(self, stream: Tensor) -> Tensor:
        return self.model.cross_entropy(self.model.predict(stream).flatten(0, -2), self.targets.flatten())


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
    with FakeTensorMode():
        ids = torch.zeros(batch, model.config.context, dtype=torch.long)
        head, cast = Head(model, ids), set[str]()
        if model.ends():
            cast = {name for name, p in head.named_parameters() if p is model.head.weight}
        return count_stack(model, ids, head, cast, conditions)


def count_stack(model: Decoder, inputs: Tensor, end: nn.Module, cast: set[str], c: Conditions) -> list[Piece]:
    """The pieces of a model whose inputs are ids. cast: the parameters of its end that are seen in the dtype of the
    blocks."""
    pieces: dict[str, Piece] = {}
    keys: list[str] = []
    start = Front(model)
    first = run_part(start, inputs, {}, c, set())
    with torch.no_grad(), c.precision():
        stream = functional_call(start, stand_ins(start, c, set()), (inputs,))
    for block in model.blocks:
        # blocks that do the same with tensors of the same shapes are counted once
        schemes = [str(module.scheme) for module in block.modules() if isinstance(module, Residual)]
        windows = [module.window for module in block.modules() if isinstance(module, SelfAttention)]
        keys.append(repr((schemes, windows, [(name, tuple(p.shape)) for name, p in block.named_parameters()])))
        if keys[-1] not in pieces:
            handed = {"positions": turns_of(model, inputs)}
            values = shape_of_values(block, inputs.shape[0], model.config.context)
            counted = run_part(block, stream, handed, c, set(dict(block.named_parameters())), values)
            pieces[keys[-1]] = replace(counted, block=True)
    return [first, *(pieces[key] for key in keys), run_part(end, stream, {}, c, cast)]


def turns_of(model: Decoder, inputs: Tensor) -> Rope | None:
    """The rotations of the positions of inputs."""
    return None if model.rotary is None else model.rotary(torch.arange(inputs.shape[1]))


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
    """The shape of the tensor for its values that a block gets beside the stream, or None."""
    mixing = [m for m in block.modules() if isinstance(m, SelfAttention) and m.mix is not None]
    return (batch, context, mixing[0].groups * mixing[0].head_dim) if mixing else None


def run_part(
    module: nn.Module,
    inputs: Tensor,
    others: dict[str, Any],
    conditions: Conditions,
    cast: set[str],
    values: tuple[int, ...] | None = None,
) -> Piece:
    """Forward and backward pass of a part of the model, counted. values: the shape of those that it is handed."""
    tensors = stand_ins(module, conditions, cast)
    existing = [*tensors.values(), *(t for t in tree_leaves(others) if t is not None)]
    gradients = [tensor.grad for tensor in existing if tensor.grad is not None]
    with Live([inputs, *existing, *gradients]) as live:
        # the stream is made here, so that it lives as long as the pass keeps it and no longer
        entering = inputs if isinstance(module, Front) else inputs.detach().requires_grad_() * 1.0
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
