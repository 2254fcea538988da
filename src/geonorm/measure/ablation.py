"""How much blocks are worth: the loss without them, beside the angle that they turn the stream by."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import sphere
from ..norms import upcast
from .accumulate import flat
from .capture import fit_mask
from .observe import ModelSite, stream_of, stream_past, watch
from .probe import Inputs, ProbedModel


@torch.no_grad()
def ablation(
    probed: ProbedModel, batches: Sequence[Tensor | Inputs], progress: Callable[[float], None] | None = None
) -> tuple[float, list[dict[str, Any]]]:
    """(loss, rows): for every block, and for runs of 2, 4, ... blocks up to half of them, the loss without them.

    first, last: blocks left out (the stream passes by them unchanged); loss, increase in nats; angle: mean angle
    between the stream before the first and after the last of them in the whole model, in radians; distance: the same
    over pi (arXiv:2403.17887).
    """
    whole = mean_loss(probed, batches)
    rows: list[dict[str, Any]] = []
    for stack, blocks in probed.blocks():
        widths = [2**k for k in range(len(blocks).bit_length()) if k == 0 or 2**k <= len(blocks) // 2]
        windows = [(start, start + width) for width in widths for start in range(len(blocks) - width + 1)]
        angles = window_angles(probed, stack, batches, windows)
        for done, (start, end) in enumerate(windows, 1):
            with left_out(blocks[start:end]):
                loss = mean_loss(probed, batches)
            angle = angles[start, end]
            rows.append(
                {"stack": stack, "first": start, "last": end - 1, "blocks": end - start, "loss": loss,
                 "increase": loss - whole, "angle": angle, "distance": angle / torch.pi}
            )  # fmt: skip
            if progress is not None:
                progress(done / len(windows))
    return whole, rows


def mean_loss(probed: ProbedModel, batches: Sequence[Tensor | Inputs]) -> float:
    """Over the tokens of all batches, whatever their sizes."""
    return probed.losses(batches).double().mean().item()


@contextmanager
def left_out(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, the stream passes by these blocks."""
    with ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_hook(pass_by, with_kwargs=True).remove)
        yield


def pass_by(block: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    """In the place of a block: the stream as it came. Whatever else the block returned (T5's position bias) stays."""
    x = stream_past(block, stream_of(args, kwargs))
    return (x, *out[1:]) if isinstance(out, tuple) else x


def window_angles(
    probed: ProbedModel, stack: str, batches: Sequence[Tensor | Inputs], windows: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], float]:
    """Mean angle between the stream before and after each window of blocks (start, end), over tokens without padding,
    as measured at the sub-layers; streams of one batch are held at a time."""
    depths: list[Tensor] = []
    places = [place for place in probed.capture.records if place.stack == stack]
    first = {place.site.layer: place for place in reversed(places)}

    def look(place: ModelSite, x: Tensor, _: Any, after: Tensor) -> None:
        if place is first[place.site.layer]:
            depths.append(place.seen(x))
        if place is places[-1]:
            depths.append(place.seen(after))

    totals, count = dict.fromkeys(windows, 0.0), 0
    with watch(probed.model, look, places):
        for batch in batches:
            inputs = probed.inputs(batch)
            probed.run(inputs, head=False)
            mask = fit_mask(probed.masks(inputs).get(stack), depths[0])
            rows = [upcast(flat(x, mask)) for x in depths]
            for start, end in windows:
                totals[start, end] += sphere.angle(rows[start], rows[end]).sum().item()
            count += rows[0].shape[0]
            depths.clear()
    return {window: total / count for window, total in totals.items()}
