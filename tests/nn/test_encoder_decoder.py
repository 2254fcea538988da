"""The encoder-decoder: every scheme trains in it, a cache changes nothing, and each stack counts its own blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Decoder, DecoderConfig, Site, names
from geonorm.errors import ConfigError
from geonorm.nn.config import T5
from geonorm.nn.encoder_decoder import BUCKETS, EncoderDecoder, RelativePositions, buckets
from geonorm.nn.models import build
from geonorm.schemes import advance, parse
from geonorm.sites.watch import sites_of, watch

from .tiny import TINY

VARIANTS: dict[str, dict[str, Any]] = {
    "T5": T5,
    "rotated": {},
    "BART": {"positions": "learned", "embed_norm": True, "norm": "layer", "bias": True, "mlp": "gelu", "tied": True},
    "grouped, gated": {"kv_heads": 2, "attn_gate": True, "qk_norm": "head", "soft_cap": 15.0},
    "no positions": {"positions": "none"},
    "bare norms": {"gains": False},
}


def both(seed: int = 0, **changes: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    model = build(replace(TINY, **{"width": 16, "hidden": 16, "encoder_layers": 3, **changes}))
    assert isinstance(model, EncoderDecoder)
    return model


def packed(batch: int = 2, source: int = 8, answer: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """(ids, targets) as an objective gives them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(61, (batch, source + answer), generator=generator)
    return ids, torch.randint(61, (batch, answer), generator=generator)


def check_step(model: EncoderDecoder) -> None:
    """A loss near log 61, finite gradients everywhere, and a step that moves the loss."""
    loss = model.loss(*packed())
    loss.backward()
    assert 2 < loss.item() < 8
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    model.constrain()
    after = model.loss(*packed())
    assert after.isfinite() and after != loss


@pytest.mark.parametrize("scheme", names())
def test_every_scheme_trains(scheme: str) -> None:
    model = both(scheme=scheme)
    advance(model)  # schemes whose steps grow from 0 have begun
    check_step(model)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_trains_and_decodes_alike_with_a_cache(variant: str) -> None:
    model = both(scheme="pre", **VARIANTS[variant])
    check_step(model)
    check_cache(model)


@torch.no_grad()
def check_cache(model: EncoderDecoder) -> None:
    (source, answer), cache = model.eval().reads(*packed()), model.new_cache(5)
    whole = model(source, answer)
    parts = [model(source, answer[:, :2], cache), *(model(None, answer[:, i : i + 1], cache) for i in (2, 3, 4))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["geonorm", "ngpt", "hyper", "attnres", "post", "siamese"])
def test_a_cache_changes_nothing_under_a_scheme(scheme: str) -> None:
    check_cache(both(scheme=scheme))


@torch.no_grad()
def test_the_answer_sees_all_of_the_source_and_none_of_what_follows() -> None:
    model = both(scheme="pre", **T5).double()
    torch.nn.init.normal_(model.relative.weight)  # type: ignore[union-attr]
    source, answer = model.reads(*packed())
    logits = model(source, answer)
    later = answer.clone()
    later[:, 3] = (later[:, 3] + 1) % 61
    assert torch.equal(model(source, later)[:, :3], logits[:, :3])
    assert not torch.equal(model(source, later)[:, 3], logits[:, 3])
    for place in range(source.shape[1]):
        other = source.clone()
        other[:, place] = (other[:, place] + 1) % 61
        assert (model(other, answer) != logits).any(-1).all(), place


def test_each_stack_counts_its_own_sites() -> None:
    model = both(encoder_layers=1)
    found = [(place.stack, place.site) for place in sites_of(model)]
    assert found == [
        ("encoder", Site(0, "attn", 1)),
        ("encoder", Site(0, "mlp", 1)),
        *(("decoder", Site(layer, kind, 2, 3)) for layer in range(2) for kind in ("attn", "cross", "mlp")),
    ]
    assert [site for site, _ in model.residuals()] == [site for _, site in found]
    seen: list[tuple[str, Site, torch.Size]] = []
    with watch(model, lambda place, x, u, after: seen.append((place.stack, place.site, x.shape))):
        model(*model.reads(*packed()))
    assert [entry[:2] for entry in seen] == found
    assert [entry[2][1] for entry in seen] == [8] * 2 + [5] * 6


def test_sub_layers_are_counted_where_a_scheme_counts_them() -> None:
    """A block of three: 3l + 1, 3l + 2, 3l + 3 of 3L; of two as ever."""
    kinds = ("attn", "cross", "mlp")
    assert [Site(layer, kind, 2, 3).number for layer in range(2) for kind in kinds] == [0, 1, 2, 3, 4, 5]
    assert [Site(layer, kind, 2).number for layer in range(2) for kind in ("attn", "mlp")] == [0, 1, 2, 3]
    scheme = parse("geonorm(index=sublayer)")
    assert [scheme.turn(None, Site(1, kind, 2, 3)).post for kind in kinds] == [1 / 4, 1 / 5, 1 / 6]  # type: ignore[attr-defined]
    block = parse("geonorm")
    assert {block.turn(None, Site(1, kind, 2, 3)).post for kind in kinds} == {1 / 2}  # type: ignore[attr-defined]
    # DeepNorm's decoder beside an encoder: (3 M)^(1/4) and (12 M)^(-1/4) (arXiv:2203.00555, table 2)
    deep = parse("deepnorm")
    one = torch.ones(4, dtype=torch.float64)
    parts = type("P", (), {"stream": staticmethod(lambda x: x)})
    assert deep.write(one, 0 * one, parts, Site(0, "cross", 6, 3))[0].item() == pytest.approx(18**0.25)
    assert deep.init_std("v", 8, 8, Site(0, "cross", 6, 3), 1.0) == pytest.approx(72**-0.25)


def test_attention_residuals_have_a_slot_for_every_block_of_sub_layers() -> None:
    model = both(scheme="attnres(blocks=6)")
    slots = [residual.scheme.place(site)[0] for site, residual in model.residuals() if site.sublayers == 3]
    assert slots == [1, 2, 3, 4, 5, 6]


def test_buckets_of_distances() -> None:
    ahead = torch.arange(-200, 201)
    one, two = buckets(ahead, causal=True), buckets(ahead, causal=False)
    assert one.min() == 0 and one.max() == BUCKETS - 1 and two.max() == BUCKETS - 1
    assert one[201:].unique().tolist() == [0]  # what lies ahead, and is not seen
    assert one[200 - 15 : 201].flip(0).tolist() == list(range(16))
    assert two[200 - 7 : 201].flip(0).tolist() == list(range(8))
    assert torch.equal(two[201:] - BUCKETS // 2, two[:200].flip(0))
    assert (one[:200].diff() <= 0).all() and one[200 - 128] == BUCKETS - 1
    bias = RelativePositions(2, causal=True)(torch.arange(3, 5), torch.arange(5))
    assert bias.shape == (2, 2, 5)
    assert bias.isneginf().tolist() == [[[False] * 4 + [True], [False] * 5]] * 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"block": "parallel"}, "model.block parallel is not for encoder-decoders"),
        ({"values": "first"}, "model.values first is not for encoder-decoders"),
        ({"causal": False}, "model.causal False is not for encoder-decoders"),
        ({"encoder_layers": None, "positions": "relative"}, "model.positions relative is for encoder-decoders"),
    ],
)
def test_what_does_not_fit_is_said_in_a_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        DecoderConfig(**{"encoder_layers": 2, **changes})
    assert "\n" not in str(error.value)


def test_a_decoder_has_no_encoder() -> None:
    with pytest.raises(ConfigError, match="is an EncoderDecoder, not a Decoder"):
        Decoder(DecoderConfig(encoder_layers=2))


def test_one_seed_gives_all_schemes_the_same_draws() -> None:
    one, other = both(scheme="pre"), both(scheme="post")
    for (role, mine, *_), (_, their, *_) in zip(one.weights(), other.weights(), strict=True):
        assert torch.equal(mine, their), role


@pytest.mark.parametrize("init", ["gpt2", "neox"])
def test_what_writes_to_a_stream_begins_smaller_by_the_depth_of_its_own_stack(init: str) -> None:
    model = both(width=128, hidden=128, layers=2, encoder_layers=8, init=init)
    found: dict[int, list[Tensor]] = {}
    for role, weight, _, site in model.weights():
        if role in ("o", "down"):
            found.setdefault(site.depth, []).append(weight.flatten())
    shallow, deep = (torch.cat(found[depth]).std().item() for depth in (2, 8))
    assert shallow / deep == pytest.approx(2.0 if init == "gpt2" else 4.0, rel=0.05)
