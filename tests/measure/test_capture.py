"""What the hooks see is the model: on every family, against its own hidden states and a plain computation in fp64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from math import pi, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import Decoder, DecoderConfig
from geonorm.errors import ConfigError
from geonorm.measure.accumulate import SiteMeasure
from geonorm.measure.anatomy import Stack, anatomy, blocks_of, join_path
from geonorm.measure.capture import Capture
from geonorm.measure.norms import examine, norms_of

from ..conftest import CASES
from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


class Keeping(SiteMeasure):
    """Keeps what it is given."""

    def update(
        self, x: Tensor, after: Tensor, u: Tensor | None = None, mask: Tensor | None = None
    ) -> dict[str, Tensor]:
        self.kept = (x.clone(), after.clone(), None if u is None else u.clone())
        return super().update(x, after, u, mask)


@torch.no_grad()
def captured(model: nn.Module, inputs: dict[str, Any]) -> tuple[Capture, Any]:
    capture = Capture(model)
    capture.sites = {place: Keeping() for place in capture.sites}
    with capture.watching():
        out = model(**inputs, output_hidden_states=True) if "ids" not in inputs else model(**inputs)
    return capture, out


@torch.no_grad()
def watched(capture: Capture, *inputs: Tensor, masks: dict[str, Tensor] | None = None, **given: Any) -> Capture:
    """After one more forward pass of its model."""
    with capture.watching(**masks or {}):
        capture.model(*inputs, **given)
    return capture


@each("family", CASES)
def test_sites_follow_each_other_and_the_models_own_hidden_states(family: str, tiny_model: Tiny) -> None:
    """x' of a site is x of the next one; x of block k is hidden state k; and x' is what norms and sum make of x, u."""
    model, inputs = tiny_model(family)
    capture, out = captured(model, inputs)
    assert len(capture.rows()) == len(capture.sites)
    for stack, base in capture.stacks:
        states = getattr(out, "hidden_states", None)
        if states is None:
            states = getattr(out, f"{stack.name}_hidden_states")
        sites = [measure for place, measure in capture.sites.items() if place.stack == stack.name]
        blocks = blocks_of(model, stack, base)
        assert len(sites) == len(blocks) * len(stack.sublayers)
        for site, following in pairwise(sites):
            torch.testing.assert_close(site.kept[1], following.kept[0], rtol=0, atol=0)
        for k in range(len(blocks)):
            assert torch.equal(sites[k * len(stack.sublayers)].kept[0], states[k])
        for number, site in enumerate(sites):
            block, place = blocks[number // len(stack.sublayers)], stack.sublayers[number % len(stack.sublayers)]
            x, after, u = site.kept
            scale = place.branches[0].scale  # u is the raw output, before the block's own number
            u = u if scale is None else u * getattr(block, scale)
            with torch.no_grad():
                moved = x + (u if place.output is None else block.get_submodule(place.output)(u))
                moved = moved if place.after is None else block.get_submodule(place.after)(moved)
            torch.testing.assert_close(after, moved, rtol=1e-5, atol=1e-5)


@each("family", CASES)
def test_rows_are_a_plain_computation_in_fp64(family: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(family)
    capture, _ = captured(model, inputs)
    for site in capture.sites.values():
        x, after, u = (part.double() for part in site.kept)
        row = site.row()
        step = after - x
        radius = x.norm(dim=-1)
        radial = (step * x).sum(-1) / radius
        tangential = (step - (radial / radius)[..., None] * x).norm(dim=-1)
        cosine = (x * after).sum(-1) / radius / after.norm(dim=-1)
        ones = x.sum(-1) / radius / sqrt(x.shape[-1])
        wanted = {
            "radius": radius.mean(),
            "radius_std": radius.std(correction=0),
            "step_norm": step.norm(dim=-1).mean(),
            "radial": radial.mean(),
            "tangential": tangential.mean(),
            "ratio": (tangential / radius).mean(),
            "radius_after": after.norm(dim=-1).mean(),
            "update_norm": u.norm(dim=-1).mean(),
            "angle": cosine.clamp(-1, 1).acos().mean(),
            "cos_ones": ones.abs().mean(),
            "angle_ones": ones.acos().mean(),
            "share_ones": ones.square().mean(),
            "peak": (x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean(),
            "abs_max": x.abs().max(),
            "resultant": (x / radius[..., None]).flatten(0, 1).mean(0).norm(),
            "abs_median": x.abs().median(),
        }
        for name, value in wanted.items():
            assert row[name] == pytest.approx(value.item(), rel=2e-5, abs=2e-6), name
        assert row["tokens"] == radius.numel()
        unit = x / radius[..., None]
        n = x.shape[1]
        pairs = (unit @ unit.mT).sum((1, 2)) - n
        assert row["cos_pair"] == pytest.approx((pairs / (n * (n - 1))).mean().item(), abs=1e-6)


@each("family", CASES)
def test_norm_rows_are_a_plain_computation_in_fp64(family: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(family)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
            seen[name] = (args[0].double().flatten(0, -2), out.double().flatten(0, -2))

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in norms_of(model).items()]
    capture, _ = captured(model, inputs)
    for handle in handles:
        handle.remove()
    rows = capture.norm_rows()
    assert {row["norm"] for row in rows} == set(seen)
    (first, *_) = [stack for stack, _ in capture.stacks]
    for row in rows:
        x, y = seen[row["norm"]]
        rotation = torch.nn.functional.cosine_similarity(x, y, dim=-1).clamp(-1, 1).acos()
        plain = torch.nn.functional.cosine_similarity(x, x - x.mean(-1, keepdim=True), dim=-1).clamp(-1, 1).acos()
        assert row["norm_kind"] == first.norm, row["norm"]
        assert row["norm_before"] == pytest.approx(x.norm(dim=-1).mean().item(), rel=1e-5)
        assert row["norm_after"] == pytest.approx(y.norm(dim=-1).mean().item(), rel=1e-5)
        assert row["rotation"] == pytest.approx(rotation.mean().item(), abs=1e-5)
        assert row["rotation_plain"] == pytest.approx(plain.mean().item() if first.norm == "layer" else 0.0, abs=1e-5)
        for end, rows_of in (("before", x), ("after", y)):
            cosine = rows_of.sum(-1) / rows_of.norm(dim=-1) / sqrt(rows_of.shape[-1])
            assert row[f"cos_ones_{end}"] == pytest.approx(cosine.abs().mean().item(), abs=1e-5)
            assert row[f"share_ones_{end}"] == pytest.approx(cosine.square().mean().item(), abs=1e-5)


@each("family", ["llama", "t5", "vit"])
def test_weights_that_stay_on_disk_give_the_same_rows(family: str, tiny_model: Tiny, tmp_path: Path) -> None:
    model, inputs = tiny_model(family)
    model.save_pretrained(tmp_path / "model")
    limits = {"max_memory": {"cpu": "5KB"}, "offload_folder": tmp_path / "offload"}
    offloaded = type(model).from_pretrained(tmp_path / "model", device_map="auto", **limits)
    assert all(p.is_meta for p in offloaded.parameters())
    assert geonorm.probe(offloaded, inputs).tables() == geonorm.probe(model, inputs).tables()


def test_bf16_models_are_measured_in_fp32(tiny_model: Tiny) -> None:
    import copy

    model, inputs = tiny_model("llama")
    half = copy.deepcopy(model).bfloat16()
    capture, _ = captured(half, inputs)
    for site in capture.sites.values():
        x = site.kept[0]
        assert x.dtype == torch.bfloat16
        assert site.row()["radius"] == pytest.approx(x.double().norm(dim=-1).mean().item(), rel=1e-6)
    assert {row["norm_kind"] for row in capture.norm_rows()} == {"rms"}


@each("scheme", ["pre", "post", "geonorm", "ngpt", "mix(post, pre, share=0.5)", "residual"])
@each("norm", ["rms", "layer"])
def test_our_own_models(scheme: str, norm: str) -> None:
    if scheme == "residual":
        scheme = "siamese" if norm == "rms" else "deepnorm"
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme=scheme, layers=3, width=24, heads=2, vocab_size=31, context=16, norm=norm))
    capture, _ = captured(model, {"ids": torch.randint(0, 31, (2, 7))})
    rows = capture.rows()
    assert [(row["layer"], row["kind"]) for row in rows] == [(n, k) for n in range(3) for k in ("attn", "mlp")]
    sites = list(capture.sites.values())
    for site, following in pairwise(sites):
        assert torch.equal(site.kept[1], following.kept[0])
    for row in capture.norm_rows():
        assert row["norm_kind"] in (norm, "rms") and row["tokens"] >= 14
    if scheme == "geonorm":
        assert all(row["radius_after"] == pytest.approx(row["radius"], rel=1e-6) for row in rows)


@pytest.mark.parametrize(
    "scheme", ["peri", "peri(max_step=0.3)", "geonorm(update=norm)", "prores(geonorm(update=norm))"]
)
def test_norms_that_a_ceiling_is_asked_with_count_once(scheme: str) -> None:
    model = Decoder(DecoderConfig(scheme=scheme, layers=2, width=16, heads=2, vocab_size=31, context=16))
    capture = watched(Capture(model), torch.randint(0, 31, (2, 6)))
    assert {row["tokens"] for row in capture.norm_rows() + capture.rows()} == {12}


@pytest.mark.parametrize("case", ["llama", "opt-post", "t5"])
def test_ends_are_called_what_they_are_wherever_they_stand(case: str, tiny_model: Tiny) -> None:
    """In an applied model the entry is in the first block and the exit where the stock norm was."""
    hf = pytest.importorskip("geonorm.hf")
    model, inputs = copy.deepcopy(tiny_model(case)[0]), tiny_model(case)[1]
    hf.apply(model, "peri")
    capture, _ = captured(model, inputs)
    roles = {(row["stack"], row["role"]) for row in capture.norm_rows()}
    assert roles == {(stack.name, role) for stack, _ in capture.stacks for role in ("input", "output", "entry", "exit")}
    ours = hf.GeoNormForCausalLM(hf.GeoNormConfig(scheme="pre", hidden_size=8, num_hidden_layers=1, vocab_size=99))
    capture, _ = captured(ours.eval(), {"input_ids": inputs["input_ids"]})
    assert {row["role"] for row in capture.norm_rows()} == {"input", "entry", "exit"}


def test_gated_norms_are_norms_of_no_fixed_gain() -> None:
    """As many as RMSNorms in their place; what they do beside a gain is not taken for one."""
    found = {}
    for norm in ("rms", "gated"):
        shape = DecoderConfig(scheme="pre", layers=2, width=24, heads=2, vocab_size=31, context=16, norm=norm)
        found[norm] = captured(Decoder(shape), {"ids": torch.randint(0, 31, (2, 7))})[0].norm_rows()
    assert [row["norm"] for row in found["gated"]] == [row["norm"] for row in found["rms"]]
    gated = [row for row in found["gated"] if row["role"] != "entry"]  # that one has no gains, and no gate
    assert {row["norm_kind"] for row in gated} == {"other"} and all(row["removal"] is None for row in gated)
    assert all(row["rotation"] is not None for row in gated)


def test_by_hand_is_the_table(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("gpt2")
    (stack,) = anatomy(model.config)
    by_hand = Stack.by_hand("h", ["attn:norm=ln_1,branch=attn", "mlp:norm=ln_2,branch=mlp"], exit="ln_f")
    one, other = Capture(model, [stack]), Capture(model, [by_hand])
    with torch.no_grad(), one.watching(), other.watching():
        model(**inputs)
    assert one.rows() == other.rows() and one.norm_rows() == other.norm_rows()
    wrong = Stack.by_hand("h", ["attn:norm=ln_9,branch=attn"])
    with pytest.raises(ConfigError, match=r"no module ln_9 in transformer.h.0 \(GPT2Block\); .*--blocks"):
        Capture(model, [wrong])
    with pytest.raises(ConfigError, match="no residual site found in GPT2LMHeadModel"):
        Capture(model, [Stack.by_hand("g", ["attn:branch=attn"])])


class Recurrent(nn.Module):
    """An LSTM with a LayerNorm, as a net without residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.lstm(x)[0])


def test_norms_of_any_model() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    convolution = transformers.ConvNextModel(
        transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1])
    )
    mamba = transformers.MambaModel(
        transformers.MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=2, state_size=4)
    )
    cases = [
        (Recurrent(), torch.randn(2, 5, 8), 1, "layer", 10),
        (convolution, torch.randn(1, 3, 64, 64), 9, "layer", None),
        (mamba, torch.randint(0, 31, (2, 5)), 3, "rms", 10),
    ]
    for model, inputs, count, kind, tokens in cases:
        with pytest.raises(ConfigError):
            Capture(model)
        capture = watched(Capture(model.eval(), sites=False), inputs)
        rows = capture.norm_rows()
        assert not capture.rows() and len(rows) == count, type(model).__name__
        assert {row["norm_kind"] for row in rows} == {kind}
        assert tokens is None or {row["tokens"] for row in rows} == {tokens}
    with pytest.raises(ConfigError, match="no LayerNorm or RMSNorm found in Linear"):
        Capture(nn.Linear(2, 2), sites=False)


def test_norms_alone_keep_nothing_of_attention() -> None:
    """What attention finds is handed to sites; where none are measured it would be kept to the end."""
    model = Decoder(DecoderConfig(layers=1, width=8, heads=2, vocab_size=11, context=4))
    assert not watched(Capture(model.eval(), sites=False), torch.zeros(1, 4, dtype=torch.long)).attended


def test_hooks_are_gone_afterwards_also_after_an_error(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("gpt2")
    capture = Capture(model)

    def hooks() -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())

    before = hooks()
    with pytest.raises(RuntimeError, match="on purpose"), capture.watching():
        assert hooks() > before
        raise RuntimeError("on purpose")
    assert hooks() == before
    with torch.no_grad():
        model(**inputs)
    assert capture.rows() == []


def test_a_uniform_component_of_known_size_and_an_outlier_dimension_are_found() -> None:
    """Planted in the embedding of a real model, both are what its first norm and site report."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=64, n_layer=1, n_head=4, n_positions=16)
    ).eval()
    share = 0.3
    with torch.no_grad():
        model.transformer.wpe.weight.zero_()
        rows = torch.randn(61, 64)
        rows = rows - rows.mean(1, keepdim=True)
        rows = rows / rows.norm(dim=1, keepdim=True) * sqrt(1 - share)
        model.transformer.wte.weight.copy_(rows + sqrt(share / 64))
    ids = torch.randint(0, 61, (3, 16))
    capture = watched(Capture(model), ids)
    norm, site = capture.norm_rows()[1], capture.rows()[0]
    assert norm["norm"] == "transformer.h.0.ln_1"
    assert norm["share_ones_before"] == pytest.approx(share, abs=1e-5) and norm["share_ones_after"] < 1e-10
    turn = torch.tensor(sqrt(share)).asin().item()
    assert norm["rotation"] == pytest.approx(turn, abs=1e-4)
    assert norm["rotation_plain"] == pytest.approx(turn, abs=1e-5) and norm["removal"] == pytest.approx(turn, abs=1e-4)
    assert site["angle_ones"] == pytest.approx(pi / 2 - turn, abs=1e-5)
    assert site["cos_ones"] > 2 * site["cos_null_high"] and site["radius"] == pytest.approx(1.0, abs=1e-5)
    with torch.no_grad():
        model.transformer.wte.weight[:, 17] = 200.0
    site = watched(Capture(model), ids).rows()[0]
    assert site["top_dim"] == 17 and site["top_dim_share"] > 0.99
    assert site["massive"] and site["abs_max"] == pytest.approx(200.0)
    assert site["peak"] == pytest.approx(8.0, rel=1e-3)


@each("family", CASES)
def test_what_a_norm_is_is_asked(family: str, tiny_model: Tiny) -> None:
    model, _ = tiny_model(family)
    for stack, base in Capture(model).stacks:
        for place in stack.sublayers:
            for path in place.norms:
                norm = model.get_submodule(join_path(base, stack.blocks, "1", path))  # some first blocks lack one
                weight = getattr(norm, "weight", None)
                facts = examine(norm, torch.zeros(1, model.config.hidden_size if weight is None else len(weight)))
                assert facts.kind == stack.norm and (facts.gain is None) == (weight is None)
                if weight is not None:
                    torch.testing.assert_close(facts.gain, weight.detach() + stack.gain_offset)
