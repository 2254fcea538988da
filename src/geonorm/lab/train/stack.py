"""Small models that are trained as one, because each alone would leave a GPU idle between its kernels.

Runs are threads that take turns, and each does what it would do alone. But at its loss it waits until all have come to
theirs. Then the losses and their gradients are computed together, by `torch.func.vmap` over the models' weights. So
checkpoints, metrics and traces are those of single runs, and losses equal theirs up to rounding. Schemes may differ in
some numbers (`Scheme.stackable`), which are mapped as the weights are.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Thread, current_thread
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...models.decoder import Transformer
from ...schemes import Scheme
from ..distributed.parallel import LossModule


class StackedModels:
    """Models of one shape. turn: held by one thread at a time, of all stacks, because seeds and compilers belong to the
    process. fields: numbers of the scheme that differ. Each thread is put among the members before it starts."""

    def __init__(self, turn: Condition, compiled: bool, fields: Sequence[str]) -> None:
        self.turn, self.compiled, self.fields = turn, compiled, fields
        self.members: set[Thread] = set()
        self.stopped: list[float] = []
        """Times at which all runs were told to stop."""
        self.waiting: dict[Thread, tuple[Transformer, Sequence[Tensor], Tensor, Tensor]] = {}
        self.results: dict[Thread, tuple[Tensor, Sequence[Tensor]]] = {}
        self.size = 0
        self.losses: Callable[..., Tensor] | None = None

    @contextmanager
    def take_part(self) -> Iterator[None]:
        """Around the whole run of a thread."""
        with self.turn:
            try:
                yield
            finally:
                self.members.discard(current_thread())
                self.waiting.pop(current_thread(), None)
                self.turn.notify_all()

    def loss(self, model: Transformer, parameters: Sequence[Tensor], ids: Tensor, targets: Tensor) -> Tensor:
        """`model.loss` with the gradients of its parameters, computed when all members wait for theirs."""
        me = current_thread()
        self.waiting[me] = model, parameters, ids, targets
        while me in self.waiting:
            if len(self.waiting) == len(self.members):
                self.compute()
                self.turn.notify_all()
            else:
                self.turn.wait()
        return LossWithGradients.apply(*self.results.pop(me), *parameters)

    def compute(self) -> None:
        """Compute the losses of all that wait. Where members have left, the first request fills their places: another
        size would need another graph."""
        requests = list(self.waiting.values())
        self.size = max(self.size, len(requests))
        requests += [requests[0]] * (self.size - len(requests))
        models, parameters, ids, targets = zip(*requests, strict=True)
        self.losses = self.losses or build_stacked_loss(models[0], self.fields, self.compiled)
        weights = [torch.stack([t.detach() for t in row]).requires_grad_() for row in zip(*parameters, strict=True)]
        counts = [torch.stack([model.get_buffer(name) for model in models]) for name in counting_buffers(models[0])]
        numbers = [
            torch.tensor([getattr(model.scheme, name) for model in models]).to(ids[0].device) for name in self.fields
        ]
        # within vmap no tensor asks for a gradient, so other kernels keep nothing for the backward pass of attention
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            losses = self.losses(weights, counts, numbers, torch.stack(ids), torch.stack(targets))
        with torch.autocast(ids[0].device.type, enabled=False):  # on around the forward pass of whoever came last
            gradients = torch.autograd.grad(losses.sum(), weights, materialize_grads=True)
        of_models = zip(*gradients, strict=True)  # gradients have a stack for each weight
        # strict=False: not those that stood in the places of members that left
        for member, loss, gradient in zip(self.waiting, losses.detach(), of_models, strict=False):
            self.results[member] = loss, gradient
        self.waiting.clear()


def counting_buffers(model: Transformer) -> list[str]:
    """Buffers that may differ between models of one shape; the `layer` of a site is the same in all."""
    return [name for name, _ in model.named_buffers() if not name.endswith("layer")]


def build_stacked_loss(model: Transformer, fields: Sequence[str], compiled: bool) -> Callable[..., Tensor]:
    """The function that gives a loss for each model from weights, counts, numbers of the scheme, ids and targets, all
    with an axis of models in front."""
    module, counts = LossModule(model), counting_buffers(model)
    names = [f"model.{name}" for name in [*dict(model.named_parameters()), *counts]]

    def loss(
        weights: Sequence[Tensor], counts: Sequence[Tensor], numbers: Sequence[Tensor], ids: Tensor, targets: Tensor
    ) -> Tensor:
        before = {name: getattr(model.scheme, name) for name in fields}
        for name, number in zip(fields, numbers, strict=True):  # of all residuals, which share it
            object.__setattr__(model.scheme, name, number)
        try:
            result: Tensor = functional_call(module, dict(zip(names, [*weights, *counts], strict=True)), (ids, targets))
        finally:  # the model's own run evaluates it
            for name, number in before.items():
                object.__setattr__(model.scheme, name, number)
        return result

    # attention on a CPU has no rule for vmap: it is called for each model
    warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
    losses: Callable[..., Tensor] = vmap(loss)
    return torch.compile(losses, dynamic=False) if compiled else losses


def split_scheme(scheme: Scheme) -> tuple[Any, dict[str, float]]:
    """What all schemes of a stack share, and the numbers in which they may differ, by field."""
    numbers = {
        name: value
        for name in vars(type(scheme)).get("stackable", ())  # not a base's: a class below may take them elsewhere too
        if isinstance(value := getattr(scheme, name), float)
    }
    return (type(scheme), vars(scheme) | dict.fromkeys(numbers)), numbers


class LossWithGradients(torch.autograd.Function):
    """A loss of which the gradients have been computed already."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return None, None, *torch._foreach_mul(ctx.gradients, grad)
