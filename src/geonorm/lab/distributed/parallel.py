"""Puts a model where it runs: device, precision, compilation, recomputation, and over the ranks of a world."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from ...errors import ConfigError
from ...models.decoder import Transformer
from ...models.init import draw_weight, restore_scalars
from ...norms import copy_whole
from ..config import Runtime
from .ranks import KEPT_GROUPS, World

Loss = Callable[[Tensor, Tensor], Tensor]
M = TypeVar("M", bound=Transformer)
MOST_BLOCKS, FEWEST_STEPS = 6, 10_000
"""A model of at most so many blocks, trained for at least so many steps, is compiled as one graph with its loss. This
takes longer the deeper the model is (four blocks: 26 s on a CPU in place of 8), and saves some 7 ms a step."""


def distribute(model: M, runtime: Runtime, device: torch.device) -> M:
    """Moves the model and wraps its blocks and its loss in place; parameter names do not change."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if runtime.dtype == "bf16" else "highest")
    model.to(device)
    for block in model.blocks:
        if runtime.recompute:
            block.forward = recompute(block.forward)
        if runtime.compile:
            block.compile()
    if runtime.compile:
        # the limit counts graphs of one function in a process, and models share their functions: beyond PyTorch's
        # default of 8 the next model would run eagerly, with no more than a warning
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        model.cross_entropy = torch.compile(Transformer.cross_entropy)  # type: ignore[method-assign]
    return model


def recompute(forward_pass: Callable[..., Any]) -> Callable[..., Any]:
    """A forward pass that keeps its input alone and runs once more for the backward pass. A plain function: the
    compiler skips a functools.partial of `checkpoint`, and the block would run eagerly."""

    def forward(*args: Any, **context: Any) -> Any:
        return checkpoint(forward_pass, *args, use_reentrant=False, **context)

    return forward


def trained_loss(model: Transformer, runtime: Runtime, device: torch.device, steps: int) -> Loss:
    """The loss to train, of a model that lies whole on one rank. In a long run on one CPU thread a small model, in
    which it takes as long to call a graph as to run it, is compiled as one graph; with several threads the gradient of
    the embedding would be summed in an order that changes. Whatever observes the model calls it block by block."""
    small = device.type == "cpu" and runtime.threads == 1 and len(model.blocks) <= MOST_BLOCKS and steps >= FEWEST_STEPS
    return torch.compile(model.loss) if runtime.compile and small and not runtime.recompute else model.loss


def layout(runtime: Runtime, world: World, batch_size: int) -> str:
    """none, ddp or fsdp. ConfigError for what does not fit this world."""
    kind: str = runtime.parallel
    if kind == "auto":
        kind = "none" if world.size == 1 else "ddp"
    if kind != "none" and world.size == 1 and not dist.is_initialized():
        raise ConfigError(f"--runtime.parallel {kind} needs torchrun: torchrun --nproc-per-node N -m geonorm train ...")
    if batch_size % world.size:
        raise ConfigError(f"batch_size {batch_size} must be a multiple of {world.size} ranks")
    return "fsdp" if kind == "hsdp" else kind


def ranks_of_a_copy(runtime: Runtime, world: World) -> int:
    """Ranks that share one copy of the model under fsdp or hsdp."""
    return world.local_size if runtime.parallel == "hsdp" else world.size


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sum_over_ranks(value: Tensor, like: Tensor) -> Tensor:
    """Sum a number over the ranks that hold the other shards. It was computed from this rank's shards of tensors that
    are sharded as `like` is."""
    if not isinstance(like, DTensor):
        return value
    parts = [Replicate() if placement.is_replicate() else Partial() for placement in like.placements]
    return DTensor.from_local(value, like.device_mesh, parts, run_check=False).full_tensor()


class LossModule(nn.Module):
    """A model's loss as a module's forward pass, which is what DDP and functional_call can take."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        return self.model.loss(ids, targets)


class ParallelModel:
    """One model over the ranks of a world: every rank sees its rows of the batch, gradients are means over ranks.

    ddp: every rank holds everything. fsdp: the parameters, gradients and optimizer state of every block are sharded
    along dimension 0; its weights are gathered when the block runs, and freed after it. Then the model comes on the
    meta device, and gets its weights here.
    """

    def __init__(
        self, model: Transformer, runtime: Runtime, world: World, device: torch.device, kind: str, steps: int = 0
    ) -> None:
        self.model, self.runtime, self.device = model, runtime, device
        if kind == "fsdp":
            # the ranks that share one copy of the model, and beside them, if asked, the copies
            each = ranks_of_a_copy(runtime, world)
            sizes = (world.size,) if each == world.size else (world.size // each, each)
            mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("replicate", "shard")[-len(sizes) :])
            KEPT_GROUPS.extend(mesh.get_all_groups())
            shard(model, runtime, mesh)
            draw_weights(model, device)
        self.parameters = list(model.parameters())  # once: the walk through a small model costs as much as the clipping
        self.loss: Loss = model.loss
        if kind == "none":
            self.loss = trained_loss(model, runtime, device, steps)
        if kind == "ddp":
            ids = [device] if device.type == "cuda" else None
            with warnings.catch_warnings():  # torch 2.13 has a new name for broadcast_buffers, which 2.11 does not know
                warnings.simplefilter("ignore", FutureWarning)
                self.loss = DistributedDataParallel(
                    LossModule(model), ids, broadcast_buffers=False, gradient_as_bucket_view=True
                )

    def precision(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        return precision(self.runtime, self.device)

    def micro_batch(self, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of one micro-batch: DDP's ranks talk in the last one only. FSDP's talk in each,
        because whole gradients kept in between would cost the memory that sharding saves."""
        if isinstance(self.loss, DistributedDataParallel) and not last:
            return self.loss.no_sync()
        return nullcontext()

    def clip(self, limit: float) -> Tensor:
        """Norm of the whole gradient over all ranks, which is scaled down to `limit` where it is larger."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if not isinstance(gradients[0], DTensor):
            return torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        parts = [local_part(gradient) for gradient in gradients]
        total = sum_over_ranks(torch.nn.utils.get_total_norm(parts).square(), gradients[0]).sqrt()
        torch._foreach_mul_(parts, (limit / (total + 1e-6)).clamp(max=1.0))
        return total

    def reshard(self) -> None:
        """Frees the weights that a forward pass has gathered where no backward pass follows it."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def draw_weights(model: Transformer, device: torch.device) -> None:
    """Gives a model that was sharded on the meta device the initial weights that a single rank would draw: every rank
    draws all of them, in the same order, but holds one whole matrix at a time and keeps its own shard. Vectors and
    scalars are made whole, all at once, because each scheme has its own way to start them."""
    model.to_empty(device=device)
    model.share_weights()
    matrices = {id(weight) for _, weight, _, _ in model.weights()}
    others = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if id(parameter) not in matrices
    ]
    for module, name, parameter in others:
        module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, device=device))
    restore_scalars(model)
    for module, name, parameter in others:
        copy_whole(parameter, getattr(module, name))
        module._parameters[name] = parameter
    for role, weight, scheme, site in model.weights():
        copy_whole(weight, draw_weight(torch.empty(weight.shape), role, scheme, site, model.config))


def shard(model: Transformer, runtime: Runtime, mesh: DeviceMesh) -> None:
    """FSDP2 in place: a group for each block, one for the embedding, one for the head, one for what is left.

    With bf16, blocks and head are gathered in bf16 and gradients reduced in fp32. The embedding stays fp32 and inputs
    are not cast, so that the residual stream keeps its dtype.
    """
    plain = MixedPrecisionPolicy(cast_forward_inputs=False)
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = half if runtime.dtype == "bf16" else plain

    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    for end in model.ends():  # one matrix in two places belongs to the group that holds both
        fully_shard(end, mesh=mesh, mp_policy=policy if end is model.head else plain)
    fully_shard(model, mesh=mesh, mp_policy=plain)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device. The copy to a GPU is asynchronous: this process does not wait for the GPU's earlier
    work."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def precision(runtime: Runtime, device: torch.device) -> AbstractContextManager[object]:
    """Matrix products in bfloat16 if asked; weights, norms and the residual stream stay fp32."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if runtime.dtype == "bf16" else nullcontext()


def rank_seed(seed: int, world: World) -> int:
    """Seed of what a rank draws by itself (dropout): the first rank has that of the run, and no other rank has one that
    another run may use."""
    return int.from_bytes(sha256(f"{seed} {world.rank}".encode()).digest()[:7]) if world.rank else seed
