"""Puts a model where it runs: device, precision, compilation, recomputation, and over the ranks of a world."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ..errors import ConfigError
from ..nn.decoder import Decoder
from .config import Runtime
from .world import ALONE, World

Optimizers = list[torch.optim.Optimizer]


def prepare(model: Decoder, runtime: Runtime, device: torch.device) -> Decoder:
    """Moves the model and wraps its blocks and its loss in place; parameter names do not change."""
    model.to(device)
    for block in model.blocks:
        if runtime.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if runtime.compile:
            block.compile()
    if runtime.compile:
        model.cross_entropy = torch.compile(Decoder.cross_entropy)  # type: ignore[method-assign]
    return model


def layout(runtime: Runtime, world: World, batch_size: int) -> str:
    """none, ddp or fsdp. ConfigError for what does not fit this world."""
    kind = runtime.parallel
    if kind == "auto":
        kind = "ddp" if world.size > 1 else "none"
    if kind == "none" and world.size > 1:
        raise ConfigError(f"--runtime.parallel none, but torchrun started {world.size} processes; use ddp or fsdp")
    if kind == "fsdp" and world.size == 1 and not dist.is_initialized():
        raise ConfigError("--runtime.parallel fsdp needs torchrun: torchrun --nproc-per-node N -m geonorm train ...")
    if batch_size % (world.size * runtime.accumulate):
        raise ConfigError(
            f"batch_size {batch_size} must be a multiple of {world.size} ranks times "
            f"runtime.accumulate {runtime.accumulate}"
        )
    if runtime.shard_size is not None and (kind != "fsdp" or world.size % runtime.shard_size):
        raise ConfigError(
            f"--runtime.shard_size {runtime.shard_size} needs --runtime.parallel fsdp and a number of ranks that is "
            f"a multiple of it; this is {kind} on {world.size}"
        )
    return kind


class Losses(nn.Module):
    """The loss as a forward pass, which is what DDP can wrap."""

    def __init__(self, model: Decoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(ids, targets)


class Spread:
    """One model over the ranks of a world: every rank sees its rows of the batch, gradients are means over ranks.

    ddp: every rank holds everything. fsdp: every block's parameters, gradients and optimizer state are cut along
    dimension 0, put together for the block's turn, and given up again (runtime.reshard). Parameters without dimensions
    cannot be cut; they stay whole on every rank, their gradients are averaged here.
    """

    def __init__(self, model: Decoder, runtime: Runtime, world: World, device: torch.device, kind: str) -> None:
        self.model, self.world, self.kind = model, world, kind
        self.uncut = [p for p in model.parameters() if p.dim() == 0] if kind == "fsdp" else []
        self.loss: Callable[[Tensor, Tensor], Tensor] = model.loss
        if kind == "fsdp":
            shard(model, runtime, world, device, set(self.uncut))
        elif kind == "ddp":
            ids = [device] if device.type == "cuda" else None
            with warnings.catch_warnings():  # torch 2.13 has a new name for broadcast_buffers, which 2.11 does not know
                warnings.simplefilter("ignore", FutureWarning)
                self.loss = DistributedDataParallel(
                    Losses(model), ids, broadcast_buffers=False, gradient_as_bucket_view=True
                )

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of one micro-batch: DDP's ranks talk in the last one only. FSDP's talk in each,
        because whole gradients kept in between would cost the memory that sharding saves."""
        if isinstance(self.loss, DistributedDataParallel) and not last:
            return self.loss.no_sync()
        return nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Norm of the whole gradient over all ranks, which is scaled down to `limit` where it is larger."""
        if self.kind != "fsdp":
            return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for parameter in self.uncut:
            if parameter.grad is not None:
                self.world.mean(parameter.grad)
        cut = [p.grad for p in self.model.parameters() if isinstance(p.grad, DTensor)]
        whole = [p.grad for p in self.uncut if p.grad is not None]
        total = torch.nn.utils.get_total_norm(cut)
        total = total.full_tensor() if isinstance(total, DTensor) else total
        if whole:
            total = torch.hypot(total, torch.nn.utils.get_total_norm(whole))
        scale = (limit / (total + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([grad.to_local() for grad in cut] + whole, scale)
        return total

    def settle(self) -> None:
        """Gives up what a forward pass without a backward pass has put together."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def shard(model: Decoder, runtime: Runtime, world: World, device: torch.device, uncut: set[nn.Parameter]) -> None:
    """FSDP2 in place: a group for each block, one for the embedding, one for the head, one for what is left.

    With bf16, blocks and head are gathered in bf16 and gradients reduced in fp32. The embedding stays fp32 and inputs
    are not cast, so that the residual stream keeps its dtype.
    """
    if runtime.shard_size is None:
        mesh = init_device_mesh(device.type, (world.size,), mesh_dim_names=("shard",))
    else:
        shape = (world.size // runtime.shard_size, runtime.shard_size)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
    plain = MixedPrecisionPolicy(cast_forward_inputs=False)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = half if runtime.dtype == "bf16" else plain

    def cut(module: nn.Module, policy: MixedPrecisionPolicy) -> None:
        fully_shard(
            module, mesh=mesh, reshard_after_forward=runtime.reshard, mp_policy=policy, ignored_params=set(uncut)
        )

    for block in model.blocks:
        cut(block, policy)
    if not model.config.tied:  # one matrix in two places belongs to the group that holds both
        cut(model.embed, plain)
        cut(model.head, policy)
    cut(model, plain)


def apart(optimizers: Optimizers) -> Optimizers:
    """Puts whole parameters into groups of their own: one fused call cannot take them together with sharded ones."""
    for optimizer in optimizers:
        for group in list(optimizer.param_groups):
            cut = [p for p in group["params"] if isinstance(p, DTensor)]
            whole = [p for p in group["params"] if not isinstance(p, DTensor)]
            if cut and whole:
                group["params"] = cut
                optimizer.add_param_group({**group, "params": whole})
    return optimizers


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of this process's memory on the device; a GPU fetches it without this process waiting for the GPU's
    earlier work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def precision(runtime: Runtime, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 if asked; weights, norms and the residual stream stay fp32."""
    if runtime.dtype == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def own_rows(batch_size: int, world: World = ALONE) -> slice:
    """This rank's rows of the global batch."""
    each = batch_size // world.size
    return slice(world.rank * each, (world.rank + 1) * each)
