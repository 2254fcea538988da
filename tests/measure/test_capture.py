"""The hooks see the model: in every family, against its own hidden states and a plain computation in fp64."""

import copy
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import Decoder, DecoderConfig, Residual, Site
from geonorm.errors import ConfigError
from geonorm.measure.accumulate import SiteMeasure
from geonorm.measure.anatomy import blocks_of
from geonorm.measure.capture import Capture
from geonorm.measure.norms import norms_of
from geonorm.measure.observe import sites_of, watch, watch_calls
from geonorm.measure.probe import ProbedModel

from ..conftest import CASES, Tiny
from ..rows import each

SMALL = {"layers": 2, "width": 24, "heads": 2, "vocab_size": 31, "context": 16}


class Keeping(SiteMeasure):
    """Keeps the tensors that it measures."""

    def update(self, x: Tensor, after: Tensor, u: Tensor | None = None, *rest: Any) -> None:
        self.tensors = (x.clone(), after.clone(), None if u is None else u.clone())
        super().update(x, after, u, *rest)


@torch.no_grad()
def captured(model: nn.Module, inputs: dict[str, Any]) -> tuple[Capture, Any]:
    capture = Capture(model)
    capture.records = {place: Keeping() for place in capture.records}
    with capture.watching():
        out = model(**inputs, output_hidden_states=True) if "ids" not in inputs else model(**inputs)
    return capture, out


@torch.no_grad()
def watched(capture: Capture, *inputs: Tensor, masks: dict[str, Tensor] | None = None, **named: Any) -> Capture:
    """After one more forward pass of its model."""
    with capture.watching(**masks or {}):
        capture.model(*inputs, **named)
    return capture


@each("family", CASES)
def test_rows_are_those_of_the_models_own_states_in_fp64(family: str, tiny_model: Tiny) -> None:
    """x' of a sub-layer is x of the next one; x of block k is hidden state k; x' is the sum of x and u with the norms
    of the table; and rows are a plain computation from these."""
    model, inputs = tiny_model(family)
    capture, out = captured(model, inputs)
    assert len(capture.rows()) == len(capture.records)
    for stack, base in capture.stacks:
        states = getattr(out, "hidden_states", None)
        if states is None:
            states = getattr(out, f"{stack.name}_hidden_states")
        sites = [measure for place, measure in capture.records.items() if place.stack == stack.name]
        blocks, width = blocks_of(model, stack, base), len(stack.sublayers)
        assert len(sites) == len(blocks) * width
        assert all(torch.equal(one.tensors[1], other.tensors[0]) for one, other in pairwise(sites))
        assert all(torch.equal(sites[k * width].tensors[0], states[k]) for k in range(len(blocks)))
        for number, site in enumerate(sites):
            block, place = blocks[number // width], stack.sublayers[number % width]
            x, after, u = site.tensors
            scale = place.branches[0].scale  # u is the raw output, before the block's own number
            u = u if scale is None else u * (getattr(block, scale) if isinstance(scale, str) else scale)
            with torch.no_grad():
                moved = x + (u if place.output is None else block.get_submodule(place.output)(u))
                moved = moved if place.after is None else block.get_submodule(place.after)(moved)
            torch.testing.assert_close(after, moved, rtol=1e-5, atol=1e-5)
            check_row(site.row(), *(part.double() for part in site.tensors))


def check_row(row: dict[str, Any], x: Tensor, after: Tensor, u: Tensor) -> None:
    step, radius, n = after - x, x.norm(dim=-1), x.shape[1]
    radial = (step * x).sum(-1) / radius
    unit = x / radius[..., None]
    tangential = (step - radial[..., None] * unit).norm(dim=-1)
    ones = unit.sum(-1) / sqrt(x.shape[-1])
    wanted = {
        "radius": radius.mean(),
        "radius_std": radius.std(correction=0),
        "step_norm": step.norm(dim=-1).mean(),
        "radial": radial.mean(),
        "tangential": tangential.mean(),
        "ratio": (tangential / radius).mean(),
        "radius_after": after.norm(dim=-1).mean(),
        "update_norm": u.norm(dim=-1).mean(),
        "angle": torch.cosine_similarity(x, after, dim=-1).clamp(-1, 1).acos().mean(),
        "cos_ones": ones.abs().mean(),
        "angle_ones": ones.acos().mean(),
        "share_ones": ones.square().mean(),
        "peak": (x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean(),
        "abs_max": x.abs().max(),
        "abs_median": x.abs().median(),
        "cos_pair": (((unit @ unit.mT).sum((1, 2)) - n) / (n * (n - 1))).mean(),
    }
    for name, value in wanted.items():
        assert row[name] == pytest.approx(value.item(), rel=2e-5, abs=2e-6), name
    assert row["tokens"] == radius.numel()


@each("family", CASES)
def test_norm_rows_are_a_plain_computation_in_fp64(family: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(family)
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def look(name: str, x: Tensor, y: Tensor) -> None:
        calls[name] = x.double().flatten(0, -2), y.double().flatten(0, -2)

    with watch_calls(norms_of(model), look):
        capture, _ = captured(model, inputs)
    rows = capture.norm_rows()
    assert {row["norm"] for row in rows} == set(calls)
    for row in rows:
        x, y = calls[row["norm"]]
        rotation = torch.cosine_similarity(x, y, dim=-1).clamp(-1, 1).acos().mean().item()
        assert row["rotation"] == pytest.approx(rotation, abs=1e-5)
        for end, vectors in (("before", x), ("after", y)):
            cosine = vectors.sum(-1) / vectors.norm(dim=-1) / sqrt(vectors.shape[-1])
            assert row[f"norm_{end}"] == pytest.approx(vectors.norm(dim=-1).mean().item(), rel=1e-5)
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
    model, inputs = tiny_model("llama")
    capture, _ = captured(copy.deepcopy(model).bfloat16(), inputs)
    for site in capture.records.values():
        x = site.tensors[0]
        assert x.dtype == torch.bfloat16
        assert site.row()["radius"] == pytest.approx(x.double().norm(dim=-1).mean().item(), rel=1e-6)


STREAMS = "pre post geonorm ngpt peri(max_step=0.3) geonorm(update=norm) prores(geonorm(update=norm)) mhc attnres \
siamese nag mix(post,pre,share=0.5)".split()


@each("scheme, norm", [*((s, "rms") for s in STREAMS), ("pre", "layer"), ("post", "layer"), ("geonorm", "layer")])
def test_our_own_models(scheme: str, norm: str) -> None:
    """One stream or several, with a clamp or without. Norms that the question for clamped tokens runs count once."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme=scheme, norm=norm, **{**SMALL, "layers": 3}))
    capture, _ = captured(model, {"ids": torch.randint(0, 31, (2, 7))})
    rows = capture.rows()
    assert [(row["layer"], row["kind"]) for row in rows] == [(n, k) for n in range(3) for k in ("attn", "mlp")]
    assert all(torch.equal(one.tensors[1], other.tensors[0]) for one, other in pairwise(capture.records.values()))
    for row in capture.norm_rows():
        assert row["tokens"] == 14 or not scheme.startswith(("peri", "geonorm", "prores"))
    for row in rows:
        assert row["tokens"] == 14 and row["radius"] > 0
        assert row["clamped"] is None or 0 <= row["clamped"] <= 1
        assert scheme != "geonorm" or row["radius_after"] == pytest.approx(row["radius"], rel=1e-6)


@each("case", ["llama", "opt-post", "t5"])
def test_a_stock_model_under_a_scheme(case: str, tiny_model: Tiny) -> None:
    """Its sub-layers stand where they stood. The entry is in the first block, the exit where the stock norm was."""
    model, inputs = copy.deepcopy(tiny_model(case)[0]), tiny_model(case)[1]
    before = sites_of(model)
    geonorm.hf.apply(model, "peri")
    after = sites_of(model)
    assert [place.key for place in after] == [place.key for place in before]
    assert {place.scheme for place in after} == {"peri"}
    capture, _ = captured(model, inputs)
    roles = {(row["stack"], row["role"]) for row in capture.norm_rows()}
    assert roles == {(stack.name, role) for stack, _ in capture.stacks for role in ("input", "output", "entry", "exit")}
    assert [(row["stack"], row["layer"], row["kind"]) for row in capture.rows()] == [
        (place.stack, place.site.layer, place.site.kind) for place in before
    ]


class Own(nn.Module):
    """Two Residuals that stand in no list of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Residual(nn.Linear(8, 8), "pre", Site(0, "mlp", 2), 8)
        self.two = Residual(nn.Linear(8, 8), "geonorm", Site(1, "mlp", 2), 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


def test_a_module_of_ones_own_is_watched_at_its_residuals() -> None:
    model, x = Own(), torch.randn(2, 3, 8)
    calls: list[Any] = []
    with watch(model, lambda *call: calls.append(call)):
        out = model(x)
    (one, *first), (two, *second) = calls
    assert [(one.scheme, one.site), (two.scheme, two.site)] == [
        ("pre", Site(0, "mlp", 2)), ("geonorm", Site(1, "mlp", 2))
    ]  # fmt: skip
    assert first[0] is x and first[2] is second[0] and second[2] is out
    assert torch.equal(first[0] + first[1], first[2])
    assert len(geonorm.probe(model, x).sites) == 2


class Recurrent(nn.Module):
    """An LSTM with a LayerNorm, as a net without residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.norm = nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.lstm(x)[0])


def test_norms_of_any_model() -> None:
    model = Recurrent().eval()
    with pytest.raises(ConfigError):
        Capture(model)
    capture = watched(Capture(model, sites=False), torch.randn(2, 5, 8))
    assert not capture.rows() and len(capture.norm_rows()) == 1 and capture.tokens() == 10
    with pytest.raises(ConfigError, match="no LayerNorm or RMSNorm in Linear"):
        Capture(nn.Linear(2, 2), sites=False)


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


def compare(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    assert some and len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            loose = 2e-2 if "_p" in name else 1e-4
            wanted = pytest.approx(other[name], rel=loose, abs=1e-5) if isinstance(value, float) else other[name]
            assert value == wanted, name


@each("case", ["llama", "attnres", "hyper"])
def test_a_padded_batch_has_the_rows_of_its_sequences_alone(case: str, tiny_model: Tiny) -> None:
    """Norms that read all streams of a token at once are measured of its streams, and of no padding."""
    torch.manual_seed(0)
    stock = case == "llama"
    model = tiny_model("llama")[0] if stock else Decoder(DecoderConfig(scheme=case, **SMALL))
    ids, mask = torch.randint(3, 31, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    padded = watched(Capture(model), ids, masks={"decoder": mask}, **({"attention_mask": mask} if stock else {}))
    apart = watched(watched(Capture(model), ids[:1]), ids[1:, :5])
    compare(padded.rows(), apart.rows())
    compare(padded.norm_rows(), apart.norm_rows())
    assert {row["tokens"] for row in padded.rows()} == {14}


@each("padded", [False, True])
def test_slots_that_nothing_is_written_to_are_not_averaged(padded: bool) -> None:
    model = Decoder(DecoderConfig(scheme="attnres", **{**SMALL, "layers": 1}))
    mask = torch.ones(2, 6, dtype=torch.int64)
    mask[1, 4:] = not padded
    seen: list[Tensor] = []
    key = model.get_submodule("exit.own.recall.key")
    key.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    capture = watched(Capture(model), torch.randint(0, 31, (2, 6)), masks={"decoder": mask} if padded else None)
    (row,) = [row for row in capture.norm_rows() if row["norm"] == "exit.own.recall.key"]
    lengths = seen[0][:, :, :3][mask.bool()].norm(dim=-1)  # the embedding, and the updates of two sub-layers
    assert seen[0][:, :, 3:].eq(0).all() and row["tokens"] == lengths.numel() == 3 * int(mask.sum())
    assert row["norm_before"] == pytest.approx(lengths.mean().item(), rel=1e-5)


def test_masks_of_flat_tokens_of_two_stacks_and_of_queries(tiny_model: Tiny) -> None:
    """OPT's MLP reads (batch x tokens, dim). Norms of queries and keys have no row where tokens are padded."""
    model, inputs = tiny_model("opt")
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 6:] = 0
    capture = watched(Capture(model), masks={"decoder": mask}, **inputs, attention_mask=mask)
    assert {row["tokens"] for row in capture.rows() + capture.norm_rows()} == {int(mask.sum())}
    model, inputs = tiny_model("t5")
    masks = {"encoder": torch.ones_like(inputs["input_ids"]), "decoder": torch.ones_like(inputs["decoder_input_ids"])}
    masks["encoder"][0, 4:], masks["decoder"][1, 3:] = 0, 0
    both = {"attention_mask": masks["encoder"], "decoder_attention_mask": masks["decoder"]}
    capture = watched(Capture(model), masks=masks, **inputs, **both)
    for row in capture.rows() + capture.norm_rows():
        assert row["tokens"] == int(masks[row["stack"]].sum())
    with pytest.raises(ConfigError, match="probe without padding"), capture.watching(decoder=torch.zeros(1, 2)):
        model(**inputs)
    model, inputs = tiny_model("qwen3")
    mask = torch.ones_like(inputs["input_ids"])
    names = {row["norm"] for row in watched(Capture(model), masks={"decoder": mask}, **inputs).norm_rows()}
    mask[0, 6:] = 0
    left = {row["norm"] for row in watched(Capture(model), masks={"decoder": mask}, **inputs).norm_rows()}
    assert names - left == {name for name in names if "q_norm" in name or "k_norm" in name} != set()


EIGHT: Any = {"layers": 2, "width": 32, "heads": 4, "vocab_size": 32, "context": 16}


def rows_of(model: Any, *batches: Any) -> list[dict[str, Any]]:
    probed = ProbedModel(model)
    probed.measure(batches)
    return probed.capture.rows()


@each("batch", [3, 1])
def test_half_of_the_tokens_are_clamped_by_construction(batch: int) -> None:
    """MLPs answer tokens with a positive first entry by a long update and all others by none."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig("geonorm", mlp="gelu", positions="none", **EIGHT))
    with torch.no_grad():
        model.embed.weight[:, 0] = torch.tensor([4.0, -4.0]).repeat(16)  # by the parity of the token
        for block in model.blocks:
            block.attn.branch.o.weight.zero_(), block.mlp.branch.up.weight.zero_(), block.mlp.branch.down.weight.zero_()
            block.mlp.branch.up.weight[:, 0] = 100.0
            block.mlp.branch.down.weight[1] = 1.0
    ids = torch.arange(36).reshape(3, 12) % 32
    assert [row["clamped"] for row in rows_of(model, *ids.split(batch))] == [0.0, 0.5, 0.0, 0.5]
    uneven = torch.tensor([[0, 2, 4, 1], [1, 3, 5, 7]])
    assert [row["clamped"] for row in rows_of(model, uneven)] == [0.0, 0.375, 0.0, 0.375]
    without_clamp = rows_of(Decoder(DecoderConfig("pre", **EIGHT)), ids)
    assert [row["clamped"] for row in without_clamp] == [None] * 4
