"""Losses and angles of an ablation are those of the tokens: without padding, and whatever the sizes of the batches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from geonorm.measure.observe import ModelSite, watch
from geonorm.measure.subject import Subject, ablation
from geonorm.models.config import DecoderConfig
from geonorm.models.decoder import Decoder
from geonorm.residual import Residual
from geonorm.sphere import angle

from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


def close(some: tuple[float, list[dict[str, Any]]], others: tuple[float, list[dict[str, Any]]]) -> None:
    assert some[0] == pytest.approx(others[0], rel=1e-5)
    for one, other in zip(some[1], others[1], strict=True):
        for key in ("loss", "angle", "distance"):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key


def test_unequal_batches_count_by_their_tokens(tiny_model: Tiny) -> None:
    subject = Subject(tiny_model("llama")[0])
    ids = torch.randint(3, 60, (6, 9), generator=torch.Generator().manual_seed(1))
    close(ablation(subject, [ids[:5], ids[5:]]), ablation(subject, [ids]))


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_in_no_angle_and_no_loss(side: str, tiny_model: Tiny) -> None:
    """Two of six rows padded: the numbers of the rows alone."""
    subject = Subject(tiny_model("llama")[0])
    ids = torch.randint(3, 60, (6, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    apart: list[dict[str, torch.Tensor]] = []
    for row in range(6):
        tokens = 4 if row in (1, 3) else 9
        mask[row] = (torch.arange(9) < tokens) if side == "right" else (torch.arange(9) >= 9 - tokens)
        apart.append({"input_ids": ids[row][mask[row].bool()][None]})
    places = (mask.cumsum(1) - 1).clamp(min=0)
    padded = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    close(ablation(subject, [padded]), ablation(subject, apart))


@each("scheme", ["pre", "attnres", "lambdas", "mhc", "polar", "residual_dual"])
def test_angles_are_of_the_stream_that_measurements_are_about(scheme: str) -> None:
    torch.manual_seed(0)
    shape = DecoderConfig(layers=3, width=16, heads=2, hidden=32, vocab_size=50, context=8, scheme=scheme)
    subject, ids = Subject(Decoder(shape)), torch.randint(50, (2, 8))
    states: list[torch.Tensor] = []

    def look(_: ModelSite, x: torch.Tensor, __: Any, after: torch.Tensor) -> None:
        states.extend(residual.scheme.seen(state) for state in (x, after))

    residual = next(residual for _, residual in subject.model.residuals())  # type: ignore[operator]
    with torch.no_grad(), watch(subject.model, look):
        subject.model(ids)
    wanted = [angle(before, after).mean().item() for before, after in zip(states[::4], states[3::4], strict=True)]
    found = [row["angle"] for row in ablation(subject, [ids])[1] if row["blocks"] == 1]
    assert found == pytest.approx(wanted, rel=1e-4)


def replaced_by_its_stream(_: nn.Module, args: Any, __: Any, out: Any) -> Any:
    return (args[0], *out[1:]) if isinstance(out, tuple) else args[0]


@each("scheme", ["geonorm", "pre", "hyper", "siamese"])
@each("case", ["llama", "opt-post", "gptj"])
def test_an_applied_model_keeps_both_ends_of_its_stream(case: str, scheme: str, tiny_model: Tiny) -> None:
    """Without a block it is the model whose sites there leave the stream alone; angles are those that sites see."""
    model = copy.deepcopy(tiny_model(case)[0])
    pytest.importorskip("geonorm.hf").apply(model, scheme)
    subject, ids = Subject(model), torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(4))
    [(_, blocks)] = subject.blocks()
    losses, fronts = [], {}

    def look(place: ModelSite, x: torch.Tensor, __: Any, after: torch.Tensor) -> None:
        fronts.setdefault(place.site.layer, place.seen(x))
        fronts[len(blocks)] = place.seen(after)

    with torch.no_grad(), watch(model, look):
        model(ids)
    for block in blocks:
        sites = [module for module in block.modules() if isinstance(module, Residual)]
        handles = [site.register_forward_hook(replaced_by_its_stream, with_kwargs=True) for site in sites]
        losses.append(subject.loss(ids).item())
        for handle in handles:
            handle.remove()
    rows = [row for row in ablation(subject, [ids])[1] if row["blocks"] == 1]
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    angles = [angle(fronts[layer], fronts[layer + 1]).mean().item() for layer in range(len(blocks))]
    assert [row["angle"] for row in rows] == pytest.approx(angles, rel=1e-4)


def test_fp64_models_have_fp64_losses(tiny_model: Tiny) -> None:
    model: nn.Module = tiny_model("llama")[0]
    ids = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    assert Subject(copy.deepcopy(model).double()).loss(ids).dtype == torch.float64
