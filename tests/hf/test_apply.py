"""A scheme for a stock model in place: every family under its own scheme gives the logits it gave, and can go back."""

import copy
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from geonorm import hf
from geonorm.errors import ConfigError
from geonorm.hf.block import Exit
from geonorm.hf.tiny import default_config, tiny
from geonorm.measure.observe import stacks_of
from geonorm.residual import Residual

from ..conftest import CASES, Tiny
from ..rows import each

OWN = {
    "gemma2": "peri(entry=embedding)",
    "olmo2": "olmo2(entry=embedding)",
    **dict.fromkeys(("bert", "bert-decoder", "roberta", "opt-post"), "post(entry=embedding)"),
}
"""The scheme that each family has already; for the others pre(entry=embedding)."""

FAMILIES = [family for family in CASES if family != "gemma3"]
"""Of gemma3 apply wants the text model alone."""


def own(family: str) -> str:
    return OWN.get(family, "pre(entry=embedding)")


def fresh(tiny_model: Tiny, family: str) -> tuple[Any, dict[str, Any]]:
    model, inputs = tiny_model(family)
    return copy.deepcopy(model), inputs


def returned(model: Any, inputs: dict[str, Any]) -> Tensor:
    out = model(**inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


@each("family", FAMILIES)
@torch.no_grad()
def test_its_own_scheme_changes_nothing_and_undo_is_exact(family: str, tiny_model: Tiny) -> None:
    scheme = own(family)
    model, inputs = fresh(tiny_model, family)
    kind, config, names = type(model), model.config, dict(model.named_parameters())
    wanted = returned(model, inputs)
    assert str(hf.scheme_of(model)) == scheme
    report = hf.apply(model, scheme)
    found = returned(model, inputs)
    if family in ("gpt_neox", "falcon-two", "stablelm-parallel"):
        # the gains of two norms stand after one common norm; branches are summed before they are added
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    else:
        assert torch.equal(found, wanted)
    assert report.sites == sum(isinstance(m, Residual) for m in model.modules()) and report.scheme == scheme
    assert len(report.carried) == len(report.added), "every new parameter took over a stock gain"
    assert type(model) is not kind and isinstance(model, kind) and model.config is not config
    report.undo()
    assert type(model) is kind and model.config is config and torch.equal(returned(model, inputs), wanted)
    after = dict(model.named_parameters())
    assert list(after) == list(names) and all(after[name] is p for name, p in names.items())
    with pytest.raises(ConfigError, match="nothing to restore"):
        report.undo()


@each("family", FAMILIES)
def test_under_geonorm(family: str, tiny_model: Tiny) -> None:
    """Radii are kept at every site, no norm is left in the blocks, and every parameter that the pass uses learns."""
    model, inputs = fresh(tiny_model, family)
    before = sum(p.numel() for p in model.parameters())
    returned(model, inputs).square().mean().backward()
    idle = {name for name, p in model.named_parameters() if p.grad is None}
    report = hf.apply(model, "geonorm")
    ratios: list[Tensor] = []

    def hook(module: nn.Module, args: Any, out: Any) -> None:
        after = out[0] if isinstance(out, tuple) else out
        ratios.append((after.norm(dim=-1) / args[0].norm(dim=-1) - 1).abs().max())

    for module in model.modules():
        if isinstance(module, Residual):
            module.register_forward_hook(hook)
    model.zero_grad()
    returned(model, inputs).square().mean().backward()
    assert len(ratios) == report.sites and torch.stack(ratios).max() < 1e-5
    for module in model.modules():
        if isinstance(module, Residual):
            assert not any("norm" in type(m).__name__.lower() for m in module.own.modules())
    assert {name for name, p in model.named_parameters() if p.grad is None} <= idle
    gone = before - sum(p.numel() for p in model.parameters())
    assert gone > 0 or (gone == 0 and family == "olmo"), "OLMo's norms have no parameters"
    assert not set(report.removed) & {name for name, m in model.named_modules() if not isinstance(m, Exit)}


@each("case", ["llama", "gpt2", "bert", "modernbert", "vit", "t5", "phi", "opt"])
def test_training_is_the_same_under_its_own_scheme(case: str, tiny_model: Tiny) -> None:
    """Dropout draws the same numbers in the same places; all gradients are equal, also where blocks are recomputed."""
    stock, inputs = fresh(tiny_model, case)
    changed = copy.deepcopy(stock)
    stacks_of(changed)  # remembered, with the rates of before
    for module in (*stock.modules(), *changed.modules()):
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.3
    hf.apply(changed, own(case))
    recomputed = copy.deepcopy(changed)
    inputs = inputs if case in ("bert", "modernbert", "vit") else {**inputs, "use_cache": False}
    enable = getattr(recomputed, "activation_checkpointing_enable", recomputed.gradient_checkpointing_enable)
    enable({"use_reentrant": False})
    losses, gradients = [], []
    for model in (stock, changed, recomputed):
        model.train()
        torch.manual_seed(0)
        loss = returned(model, inputs).square().mean()
        loss.backward()
        losses.append(loss.item())
        matrices = [p for p in model.parameters() if p.dim() == 2 and p.grad is not None]
        gradients.append(sorted(float(p.grad.norm()) for p in matrices))
    assert losses[0] == losses[1] == losses[2]
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-5) and gradients[1] == gradients[2]


@pytest.mark.parametrize("case", ["llama", *(pytest.param(case, marks=pytest.mark.slow) for case in ("gpt2", "bert"))])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@torch.no_grad()
def test_one_graph(case: str, tiny_model: Tiny) -> None:
    model, inputs = fresh(tiny_model, case)
    hf.apply(model, "geonorm")
    wanted = returned(model, inputs)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(returned(compiled, inputs), wanted)


def test_the_stream_is_wide_in_half_precision(tiny_model: Tiny) -> None:
    model, inputs = fresh(tiny_model, "llama")
    model.bfloat16()
    report = hf.apply(model, "geonorm(learn=gain, update=norm)")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    seen = []
    for module in model.modules():
        if isinstance(module, Residual):
            module.register_forward_hook(lambda m, args, out: seen.append((args[0].dtype, m.branch)))
    assert returned(model, inputs).dtype == torch.bfloat16
    assert len(seen) == report.sites and all(dtype == torch.float32 for dtype, _ in seen)
    model.float()
    assert returned(model, inputs).dtype == torch.float32


@each("family, before", zip(FAMILIES, cycle([False, True]), strict=False))
@torch.no_grad()
def test_attentions_are_those_of_the_stock_model(family: str, before: bool, tiny_model: Tiny) -> None:
    """Of every stack, with hidden states; also where transformers has recorded before, and after undo."""
    scheme = own(family)
    stock, inputs = fresh(tiny_model, family)
    stock.set_attn_implementation("eager")
    model = copy.deepcopy(stock)
    asked = {**inputs, "output_attentions": True, "output_hidden_states": True}
    wanted = stock(**asked)
    if before:
        model(**asked)
    report = hf.apply(model, scheme)
    under = model(**asked)
    report.undo()
    for found in (under, model(**asked)):
        names = [name for name in wanted if "attentions" in name or "hidden_states" in name]
        assert names and [len(found[name]) for name in names] == [len(wanted[name]) for name in names]
        for name in names:
            for one, other in zip(found[name], wanted[name], strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("case", ["llama", "t5"])
def test_undo_keeps_what_was_set_in_the_configuration(case: str, tiny_model: Tiny, tmp_path: Path) -> None:
    model, inputs = fresh(tiny_model, case)
    kind = type(model.config)
    report = hf.apply(model, "geonorm")
    size = model.config.vocab_size + 8
    model.resize_token_embeddings(size)
    model.config.pad_token_id = 2
    model.set_attn_implementation("eager")
    model.save_pretrained(tmp_path / "applied")
    model.double().train()
    report.undo()
    assert {p.dtype for p in model.parameters()} == {torch.float64} and all(m.training for m in model.modules())
    model.float().eval()
    config = model.config
    assert type(config) is kind and config.model_type == kind.model_type
    assert not any(hasattr(getattr(module, "config", None), "scheme") for module in model.modules())
    assert (config.vocab_size, config.pad_token_id, config._attn_implementation) == (size, 2, "eager")
    assert not any("Geonorm" in name for name in config.architectures or ())
    model.save_pretrained(tmp_path / "stock")
    again = type(model).from_pretrained(tmp_path / "stock", attn_implementation="eager").eval()
    assert torch.equal(returned(again, inputs), returned(model, inputs)) and again.config.pad_token_id == 2


def test_frozen_norms_stay_frozen_and_new_parts_train(tiny_model: Tiny) -> None:
    """What took over the gains of a frozen norm is frozen; what a scheme brings trains."""
    model, _ = fresh(tiny_model, "llama")
    model.requires_grad_(False)
    report = hf.apply(model, "pre(entry=embedding)")
    assert not any(p.requires_grad for p in model.parameters())
    report.undo()
    assert not any(p.requires_grad for p in model.parameters())
    report = hf.apply(model, "peri(entry=embedding)")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == set(report.added) - set(report.carried)
    report.undo()
    model.model.layers[1].input_layernorm.requires_grad_(True)
    report = hf.apply(model, "pre(entry=embedding)")
    assert [p.requires_grad for p in model.parameters()].count(True) == 1
    gemma: Any = tiny(default_config("gemma4_text"))
    hf.apply(gemma, hf.scheme_of(gemma))
    assert {p.requires_grad for name, p in gemma.named_parameters() if name.endswith(".scalar")} == {False}  # buffers


@torch.no_grad()
def test_a_module_that_is_set_in_a_changed_block_is_used(tiny_model: Tiny) -> None:
    model, inputs = fresh(tiny_model, "llama")
    report = hf.apply(model, "geonorm")
    without = copy.deepcopy(model)
    without.model.layers[1].mlp.down_proj.weight.zero_()
    zero = model.model.layers[1].mlp = nn.Threshold(torch.inf, 0.0)
    assert torch.equal(returned(model, inputs), returned(without, inputs))
    report.undo()
    assert model.model.layers[1].mlp is zero


def test_refusals(tiny_model: Tiny) -> None:
    model, _ = fresh(tiny_model, "llama")
    ours = hf.GeoNormForCausalLM(hf.GeoNormConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2))
    quantised, dynamic, patched, applied, bert = (
        copy.deepcopy(each) for each in (model, model, model, model, tiny_model("bert")[0])
    )
    quantised.hf_quantizer = object()
    for parameter in dynamic.model.layers[1].mlp.requires_grad_(False).parameters():
        parameter.data = parameter.data.to(torch.int8)
    patched.model.layers[1].forward = print
    hf.apply(applied, "post")
    block = type(bert.bert.encoder.layer[1])
    bert.bert.encoder.layer[1].__class__ = type("Half", (block,), {"forward": lambda self, x, *args, **more: x})
    names = [name for name, _ in model.named_parameters()]
    small = {f"{side}_{size}": 2 for side in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    bart = transformers.BartForConditionalGeneration(transformers.BartConfig(d_model=8, vocab_size=60, **small))
    xglm = transformers.XGLMConfig(d_model=8, num_layers=1, attention_heads=2, activation_dropout=0.5)
    for subject, scheme, message in [
        (nn.Linear(2, 2), "geonorm", "apply changes transformers models, not Linear"),
        (torch.compile(model, backend="eager"), "geonorm", r"apply changes .* not OptimizedModule"),
        (ours, "geonorm", "its scheme is a field of its configuration"),
        (quantised, "geonorm", "is quantised"),
        (dynamic, "geonorm", "is quantised"),
        (patched, "geonorm", "wrapped"),
        (applied, "geonorm", "post is already applied"),
        (bert, "pre", r"^Half of this BertForMaskedLM has a forward that is not transformers' own"),
        (tiny_model("gemma3")[0], "geonorm", "give it the text model alone"),
        (bart, "geonorm", "or two stacks"),
        (transformers.XGLMForCausalLM(xglm), "geonorm", "dropout elsewhere than on one update"),
        (model, "ngpt", "modules inside a branch or head"),
        (model, "attnres(queries=qkv, every=2)", "gives an attention three inputs"),
        (model, "prores(pre)", "for models trained from the start: its steps begin at 0"),
        (model, "mix(angpt, pre, share=0.5)", "modules inside a branch or head"),
        (model, "geonom", "did you mean 'geonorm'"),
    ]:
        with pytest.raises(ConfigError, match=message) as error:
            hf.apply(subject, scheme)
        assert "\n" not in str(error.value)
    applied.peft_config = {}
    for subject, message in ((model, "nothing to restore"), (applied, "has PEFT adapters")):
        with pytest.raises(ConfigError, match=message):
            hf.restore(subject)
    assert [name for name, _ in model.named_parameters()] == names and type(model).__name__ == "LlamaForCausalLM"
