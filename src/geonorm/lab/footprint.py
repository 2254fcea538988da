"""The memory of one micro-batch, for each part of a model, found by running the model on tensors without storage.

No formula is written down for a scheme or a layer: forward and backward pass of the entry, of every different block and
of the head run on PyTorch's fake tensors while the bytes of all live storages are counted. The sizes are those of
PyTorch's CPU operators in eager mode. A GPU's fused RMSNorm keeps one copy of the stream less per norm; torch.compile
keeps still less.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..models.attention import SelfAttention
from ..models.decoder import Decoder
from ..residual import Residual


class Piece(NamedTuple):
    """Memory of a part of the model at one size of batch."""

    weights: int
    """Number of its parameters."""
    width: int
    """Bytes of each parameter, in the dtype in which the pass uses it."""
    stream: int
    """Bytes of the residual stream that enters it."""
    saved: int
    """Bytes that its forward pass keeps for the backward pass: its input and casts of its weights included."""
    forward: int
    """Most bytes that its forward pass holds at once, its input included."""
    backward: int
    """Most bytes that its backward pass holds at once beyond `saved`, the gradients of its weights included."""
    block: int = 0
    """1 for a block, of which recomputation keeps the input alone."""

    def with_recomputation(self) -> Piece:
        """The same under activation checkpointing: only the input of a block is kept, and the backward pass computes
        the rest again."""
        again = self.saved - self.stream + self.backward
        return self._replace(saved=self.stream, backward=again) if self.block else self

    def at(self, batch: int, size: int, double: Piece) -> Piece:
        """The same for any batch, on the line through this piece, for `size` sequences, and `double`, for twice as
        many."""
        lines = zip(self, double, strict=True)
        return Piece(*(int(one + (batch - size) * (two - one) / size) for one, two in lines))


class Live(TorchDispatchMode):
    """Counts the bytes of the storages that operators make, as long as each lives; not those of `existing` tensors."""

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


class End(nn.Module):
    """The part of a model before its blocks, from ids to the stream, or the part after them. others: modules of the
    model that it does without. work: what it computes."""

    def __init__(self, model: Decoder, others: tuple[str, ...], work: Callable[[Decoder, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.work = copy(model), work
        self.model._modules = {**model._modules, **dict.fromkeys(others)}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.work(self.model, inputs)


@dataclass(frozen=True)
class Conditions:
    """How the passes run. weights: the dtype in which blocks and head use their weights. precision: the context of the
    forward pass, autocast or none. adding: gradients are added to buffers that exist already, as in accumulation."""

    weights: torch.dtype
    precision: Callable[[], AbstractContextManager[object]]
    adding: bool


def footprint(model: Decoder, batch: int, c: Conditions) -> list[Piece]:
    """The pieces of a model on the meta device in order (entry, blocks, head), for a micro-batch of `batch` sequences.
    To be called under a FakeTensorMode. Embedding, entry and exit use their weights in fp32."""
    ids = torch.zeros(batch, model.config.context, dtype=torch.long)
    start = End(
        model, ("blocks", "exit", "transform", "head", "logits_slot"), lambda part, ids: part.entry(part.begin(ids)[0])
    )
    end = End(
        model,
        ("embed", "position", "embed_norm", "values", "entry", "blocks"),
        lambda part, stream: part.predict_loss(stream, ids),
    )
    with torch.no_grad(), c.precision():
        stream = functional_call(start, stand_ins(start, c, set()), (ids,))
    turns = None if model.rotary is None else model.rotary(torch.arange(ids.shape[1]))
    handed = {"positions": turns}
    pieces: dict[str, Piece] = {}
    keys: list[str] = []
    for block in model.blocks:
        # blocks that do the same with tensors of the same shapes are counted once
        schemes = [str(module.scheme) for module in block.modules() if isinstance(module, Residual)]
        windows = [module.window for module in block.modules() if isinstance(module, SelfAttention)]
        keys.append(repr((schemes, windows, [(name, tuple(p.shape)) for name, p in block.named_parameters()])))
        if keys[-1] not in pieces:
            mixing = [m for m in block.modules() if isinstance(m, SelfAttention) and m.mix is not None]
            # the tensor for its values that a block gets beside the stream
            values = (batch, model.config.context, mixing[0].groups * mixing[0].head_dim) if mixing else None
            counted = run_part(block, stream, handed, c, set(dict(block.named_parameters())), values)
            pieces[keys[-1]] = counted._replace(block=1)
    cast = {name for name, p in end.named_parameters() if p is model.head.weight and model.ends()}
    return [run_part(start, ids, {}, c, set()), *(pieces[key] for key in keys), run_part(end, stream, {}, c, cast)]


def stand_ins(module: nn.Module, conditions: Conditions, cast: set[str]) -> dict[str, Tensor]:
    """By name, fake tensors on the CPU that replace a module's own on the meta device. `cast`: the parameters that the
    pass uses in the dtype of the conditions."""
    tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in module.named_buffers()}
    for name, parameter in module.named_parameters():
        dtype = conditions.weights if name in cast else parameter.dtype
        tensors[name] = torch.empty(parameter.shape, dtype=dtype, requires_grad=True)
        if conditions.adding:
            tensors[name].grad = torch.empty_like(tensors[name])
    return tensors


def run_part(
    module: nn.Module,
    inputs: Tensor,
    others: dict[str, Any],
    conditions: Conditions,
    cast: set[str],
    values: tuple[int, ...] | None = None,
) -> Piece:
    """The memory of forward and backward pass of a part of the model. values: the shape of the tensor for the values of
    attention that the part gets beside the stream, if it gets one."""
    tensors = stand_ins(module, conditions, cast)
    existing = [*tensors.values(), *(t for t in tree_leaves(others) if isinstance(t, Tensor))]
    gradients = [tensor.grad for tensor in existing if tensor.grad is not None]
    with Live([inputs, *existing, *gradients]) as live:
        # the stream is made here, so that it lives as long as the pass keeps it and no longer
        entering = inputs if inputs.dtype == torch.long else inputs.detach().requires_grad_() * 1.0
        if values is not None:
            others = {**others, "values": torch.empty(values, requires_grad=True) * 1.0}
        stream = live.now
        with _reparametrize_module(module, tensors):
            with conditions.precision():
                out = module(entering, **others)
            forward = live.peak
            every = out if isinstance(out, tuple) else (out,)
            end = sum((part * 1.0).sum() for part in every)  # their gradients are made and dropped as in the model
            del out, every, entering, others
            saved = live.peak = live.now
            end.backward()
        backward = live.peak - saved
    width = conditions.weights.itemsize if cast else 4
    return Piece(sum(p.numel() for p in module.parameters()), width, stream, saved, forward, backward)
