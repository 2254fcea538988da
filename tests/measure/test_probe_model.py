"""A probed model is left as it was; its losses, gradients and ablations are its own."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm.errors import ConfigError
from geonorm.measure.ablation import ablation
from geonorm.measure.observe import ModelSite, watch
from geonorm.measure.probe import ProbedModel
from geonorm.models import Decoder, DecoderConfig
from geonorm.residual import Residual
from geonorm.sphere import angle

from ..conftest import Tiny
from ..rows import each

Ablation = tuple[float, list[dict[str, Any]]]


def draw(rows: int, tokens: int = 9) -> Tensor:
    return torch.randint(3, 60, (rows, tokens), generator=torch.Generator().manual_seed(1))


def test_a_probe_leaves_modes_and_gradients_alone(tiny_model: Tiny) -> None:
    """Modes module by module, also after an error; gradients that wait for a step."""
    model, inputs = tiny_model("gpt2")
    model = copy.deepcopy(model).train()
    model.transformer.h[1].mlp.eval()
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    modes = [module.training for module in model.modules()]
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    result = geonorm.probe(model, inputs["input_ids"], gradients=True, ablate_blocks=True)
    assert all(row["grad_norm"] > 0 for row in result.sites)
    compiled = torch.compile(model, backend="eager")
    again = geonorm.probe(compiled, inputs["input_ids"], gradients=True)  # type: ignore[arg-type]
    assert [row["grad_norm"] for row in again.sites] == [row["grad_norm"] for row in result.sites]  # without dropout
    with pytest.raises(IndexError):
        geonorm.probe(model, torch.ones(1, 99).long())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters())


@each("case", ["gpt2", "llama", "bert-decoder", "t5", "bert"])
def test_the_loss_at_labels_is_the_models_own(case: str, tiny_model: Tiny) -> None:
    """Of a part of the tokens, next to padding; of an encoder-decoder also where labels alone say what it reads."""
    model, inputs = tiny_model(case)
    labels, mask = draw(2), torch.ones(2, 9).long()
    labels[0, :4], labels[1, 7:] = -100, -100
    mask[1, 6:] = 0  # labels, not the mask, say which tokens count
    batch = {**inputs, "attention_mask": mask, "labels": labels}
    batch.pop("decoder_input_ids", None)
    with torch.no_grad():
        wanted = model(**batch).loss
    assert torch.allclose(ProbedModel(model).loss(batch), wanted, rtol=1e-5)
    assert geonorm.probe(model, batch, ablate_blocks=True).loss == pytest.approx(wanted.item(), rel=1e-5)


def test_fp64_models_have_fp64_losses(tiny_model: Tiny) -> None:
    assert ProbedModel(copy.deepcopy(tiny_model("llama")[0]).double()).loss(draw(2)).dtype == torch.float64


@each("case", ["llama", "gptj", "t5", "gpt_neox", "qwen3_moe"])
def test_gradients_are_those_of_the_loss(case: str, tiny_model: Tiny) -> None:
    """Of a mixture of experts those of all experts."""
    model, inputs = tiny_model(case)
    probed = ProbedModel(model)
    rows = list(probed.gradients(inputs).values())
    assert len(rows) == len(probed.capture.records) and all(p.grad is None for p in model.parameters())
    chains, row = list(probed.capture.records)[-1].chains, rows[-1]
    parameters = [p for chain in chains for m in chain for p in m.parameters()]
    weights = [p for p in parameters if p.dim() == 3] or [p for p in parameters if p.dim() == 2]
    lengths = [g.norm().item() for g in torch.autograd.grad(probed.loss(inputs), weights)]
    if "grad_w2" in row:
        assert row["grad_w2"] == pytest.approx(lengths[-1], rel=1e-5)
        assert row["grad_w1"] == pytest.approx(sum(size**2 for size in lengths[:-1]) ** 0.5, rel=1e-5)
    assert row["grad_norm"] >= sum(size**2 for size in lengths) ** 0.5 * (1 - 1e-6)


def close(some: Ablation, others: Ablation) -> None:
    assert some[0] == pytest.approx(others[0], rel=1e-5) and len(some[1]) == len(others[1])
    for one, other in zip(some[1], others[1], strict=True):
        for key in ("loss", "angle", "distance"):
            assert one[key] == pytest.approx(other[key], rel=1e-4), key


@each("side", ["right", "left", "none"])
def test_an_ablation_is_of_tokens_without_padding_whatever_the_batches(side: str, tiny_model: Tiny) -> None:
    """Two of six rows padded: the numbers of the rows alone."""
    probed, ids, mask = ProbedModel(tiny_model("llama")[0]), draw(6), torch.ones(6, 9).long()
    if side != "none":
        mask[1:4:2, 4:] = 0
        mask = mask if side == "right" else mask.flip(1)
    apart = [{"input_ids": row[real.bool()][None]} for row, real in zip(ids, mask, strict=True)]
    padded = {"input_ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    close(ablation(probed, [padded]), ablation(probed, apart))


@each("case", ["llama", "gpt_neo", "t5"])
def test_a_block_left_out_is_a_model_without_it(case: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(case)
    probed = ProbedModel(model)
    whole, rows = ablation(probed, [inputs])
    assert whole == pytest.approx(probed.loss(inputs).item())
    stack, blocks = probed.blocks()[-1]
    row = next(r for r in rows if r["stack"] == stack and (r["first"], r["last"]) == (1, 1))
    assert row["increase"] == pytest.approx(row["loss"] - whole)
    assert row["distance"] == pytest.approx(row["angle"] / torch.pi)
    out = model(**inputs, output_hidden_states=True)
    states = out.decoder_hidden_states if case == "t5" else out.hidden_states
    if len(blocks) > 2:
        assert row["angle"] == pytest.approx(angle(*states[1:3]).mean().item(), rel=1e-4)
    if case == "t5":
        return
    shorter = copy.deepcopy(model)
    spec, base = ProbedModel(shorter).capture.stacks[0]
    del shorter.get_submodule(f"{base}.{spec.blocks}")[1]
    shorter.config.num_hidden_layers = len(blocks) - 1
    logits = shorter(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1)
    wanted = torch.nn.functional.cross_entropy(logits, inputs["input_ids"][:, 1:].flatten())
    assert row["loss"] == pytest.approx(wanted.item(), rel=1e-5)


def replaced_by_its_stream(_: nn.Module, args: Any, __: Any, out: Any) -> Any:
    return (args[0], *out[1:]) if isinstance(out, tuple) else args[0]


@each("scheme", ["geonorm", "pre", "hyper", "siamese"])
@each("case", ["llama", "opt-post", "gptj", "ours"])
def test_angles_and_losses_are_those_at_the_sub_layers(case: str, scheme: str, tiny_model: Tiny) -> None:
    """A model without a block is the model whose sub-layers there leave the stream alone, under a scheme with its ends;
    angles are those between the streams at the sub-layers."""
    torch.manual_seed(0)
    if case == "ours":
        shape = DecoderConfig(layers=3, width=16, heads=2, hidden=32, vocab_size=60, context=16, scheme=scheme)
        model: Any = Decoder(shape)
    else:
        model = copy.deepcopy(tiny_model(case)[0])
        geonorm.hf.apply(model, scheme)
    probed, ids, fronts = ProbedModel(model), draw(2), dict[Any, Tensor]()
    [(_, blocks)] = probed.blocks()

    def look(place: ModelSite, x: Tensor, __: Any, after: Tensor) -> None:
        fronts.setdefault(place.site.layer, place.seen(x))
        fronts[len(blocks)] = place.seen(after)

    with torch.no_grad(), watch(model, look):
        model(ids)
    losses = []
    for block in blocks:
        sites = [module for module in block.modules() if isinstance(module, Residual)]
        handles = [site.register_forward_hook(replaced_by_its_stream, with_kwargs=True) for site in sites]
        losses.append(probed.loss(ids).item())
        for handle in handles:
            handle.remove()
    rows = [row for row in ablation(probed, [ids])[1] if row["blocks"] == 1]
    assert [row["loss"] for row in rows] == pytest.approx(losses, rel=1e-5)
    angles = [angle(fronts[layer], fronts[layer + 1]).mean().item() for layer in range(len(blocks))]
    assert [row["angle"] for row in rows] == pytest.approx(angles, rel=1e-4)


@each(
    "data, message",
    [
        (torch.arange(8), "data of ids is (batch, tokens) of integers, not (8,) of int64"),
        (torch.rand(2, 8), "data of ids is (batch, tokens) of integers, not (2, 8) of float32"),
        (torch.tensor([[1, 67]]), "data has ids from 1 to 67, and the model knows 0 to 66"),
        ({"input_ids": torch.tensor([[-1, 6]])}, "data has ids from -1 to 6, and the model knows 0 to 66"),
    ],
)
@each("case", ["gpt2", "ours"])
def test_ids_that_the_model_does_not_know(case: str, data: Any, message: str, tiny_model: Tiny) -> None:
    shape = DecoderConfig(layers=1, width=16, heads=2, vocab_size=67, context=16)
    model = Decoder(shape) if case == "ours" else tiny_model("gpt2")[0]
    if case == "ours" and isinstance(data, dict):
        data = {"": data["input_ids"]}
    with pytest.raises(ConfigError) as caught:
        geonorm.probe(model, data)
    assert str(caught.value) == message
    assert geonorm.probe(model, torch.ones(2, 8, dtype=torch.int32)).tokens == 16


@each("measure", ["gradients", "ablate_blocks"])
def test_a_loss_that_cannot_be_measured_is_one_line(measure: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model("gpt2")
    ids = inputs["input_ids"]
    assert geonorm.probe(model, ids[:, :1]).tokens == 2  # states without a loss
    for other, data, message in (
        (model, ids[:, :1], "nothing is to be predicted"),
        (model, {"input_ids": ids, "labels": torch.full((2, 9), -100)}, "nothing is to be predicted"),
        (*tiny_model("vit"), "predicts the next token: this one is ViTModel"),
        (tiny_model("bert")[0], ids, "needs labels: BertForMaskedLM"),
    ):
        with pytest.raises(ConfigError, match=message):
            geonorm.probe(other, data, **{measure: True})
    with pytest.raises(ConfigError, match="gradients of a frozen model"):
        geonorm.probe(copy.deepcopy(model).requires_grad_(False), ids, gradients=True)
