"""Tensor parallelism: the ranks of a group share the matrices of every block, and all else is whole on each of them.

    stream (whole rows) -> read -> y -> q k v up gate, cut by rows: every rank has some heads, some hidden units
                                     -> attention, activation -> o down, cut by columns -> sum over ranks -> u -> write

Which matrix is cut how is the table of roles (nn/roles.py, nn/plans.py). The stream is never cut: a norm, a geodesic
step, and every other write of a scheme is a function of whole rows. It is the same on all ranks of a group, so that
what stands on it (norms and scalars of schemes, embedding, exit, head) is computed by each and needs no communication.

What a scheme or `qk_norm` puts on heads or hidden units computes on distributed tensors: PyTorch knows which of its
operators mix what lies on several ranks. A norm over all heads of a token (qk_norm full) gathers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from ...errors import ConfigError
from ...nn.attention import SelfAttention
from ...nn.config import TrunkConfig
from ...nn.mlp import MLP
from ...nn.plans import PLACES, tensor_parallel_plan
from ...nn.trunk import Trunk


def check_shares(config: TrunkConfig, size: int) -> None:
    """ConfigError for a shape whose heads or hidden units cannot be shared evenly by so many ranks."""
    for name, count in (("heads", config.heads), ("kv_heads", config.groups), ("hidden", config.hidden)):
        if count % size:
            raise ConfigError(f"model.{name} {count} must be a multiple of runtime.tensor_size {size}")
    if size > 1 and getattr(config, "encoder_layers", None) is not None:
        raise ConfigError(f"runtime.tensor_size {size} is not for encoder-decoders: use fsdp")
    if size > 1 and config.values != "own":
        raise ConfigError(f"model.values {config.values} needs whole values on every rank: use runtime.tensor_size 1")


def cut(model: Trunk, mesh: DeviceMesh) -> None:
    """Cuts the blocks of a model among the ranks of a mesh, in place; parameters become distributed tensors under their
    names. A model on the meta device stays there."""
    styles = {"colwise": ColwiseParallel, "rowwise": SumOutput}
    plan: dict[str, ParallelStyle] = {f"blocks.*.{place}": ShareInput() for place in PLACES[model.config.block]}
    plan |= {place: styles[word]() for place, word in tensor_parallel_plan(model.config).items()}
    parallelize_module(model, mesh, plan)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            for norm in module.norms.values():
                parallelize_module(norm, mesh, OnUnits(-1, gathered=True) if module.whole else OnUnits(-2))
            for slot in module.slots.values():
                parallelize_module(slot, mesh, OnUnits(-2))
        elif isinstance(module, MLP):
            for slot in module.slots.values():
                parallelize_module(slot, mesh, OnUnits(-1))


def group_alike(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Tensors in groups that lie on the same ranks in the same way: one operator can take a group as a list."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        where = (tensor.device_mesh, tensor.placements) if isinstance(tensor, DTensor) else None
        groups.setdefault(where, []).append(tensor)
    return list(groups.values())


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_ranks(value: Tensor, group: list[Tensor]) -> Tensor:
    """A number that was computed from this rank's part of a group, summed over the ranks that hold the other parts."""
    first = group[0]
    if not isinstance(first, DTensor):
        return value
    held = [Replicate() if placement.is_replicate() else Partial() for placement in first.placements]
    total = DTensor.from_local(value, first.device_mesh, held, run_check=False)
    for dim in range(len(held)):  # one after the other: PyTorch warns of two at once
        held[dim] = Replicate()
        total = total.redistribute(placements=held)
    return total.to_local()


def sum_gradients(model: nn.Module) -> None:
    """Gradients of parameters that are whole on every rank are summed as soon as they are known, each rank having seen
    its heads and units only."""
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            parameter.register_hook(lambda grad, to=parameter.placements: grad.redistribute(placements=to))


class WaitForGradient(torch.autograd.Function):
    """The identity. Its gradient has arrived when it is handed on: PyTorch's is a promise, whose memory a kernel of our
    own would read too early."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.wait() if isinstance(grad, AsyncCollectiveTensor) else grad


class ShareInput(ParallelStyle):
    """For a branch: what it reads is the same on all ranks, and its gradient the sum of theirs, once for all matrices
    that read it."""

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
            y = DTensor.from_local(WaitForGradient.apply(given[0]), mesh, [Replicate()], run_check=False)
            return y, *given[1:]

        module.register_forward_pre_hook(enter)
        return module


class SumOutput(RowwiseParallel):
    """For o and down: every rank's part of the update, summed, whole and there when it is handed on."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Partial(), use_local_output=False)

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, mesh)
        module.register_forward_hook(lambda _, __, out: out.full_tensor())
        return module


class OnUnits(ParallelStyle):
    """For a module on heads or hidden units: sees them as one tensor that is cut along `dim`, or `gathered`, where it
    needs whole rows of them. Its own parameters are whole on every rank."""

    def __init__(self, dim: int, gathered: bool = False) -> None:
        super().__init__()
        self.dim, self.gathered = dim, gathered

    def _apply(self, module: nn.Module, mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, given: tuple[Any, ...], __: DeviceMesh) -> tuple[Any, ...]:
            (y,) = given
            units = DTensor.from_local(y, mesh, [Shard(y.dim() + self.dim)], run_check=False)
            return (units.redistribute(placements=[Replicate()]) if self.gathered else units,)

        def leave(_: nn.Module, out: DTensor, __: DeviceMesh) -> Tensor:
            return out.redistribute(placements=[Shard(out.dim() + self.dim)]).to_local()

        return distribute_module(module, mesh, None, enter, leave)  # type: ignore[arg-type]
