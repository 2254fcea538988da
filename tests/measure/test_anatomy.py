"""The table of model families, proved on real models of each: the sum that it states is the block that runs."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm.errors import ConfigError
from geonorm.measure.anatomy import FAMILIES, Branch, Stack, Sublayer, anatomy, join_path, sublayer
from geonorm.measure.observe import stacks_of

from ..conftest import CASES
from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


def first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def record(module: nn.Module, seen: dict[int, tuple[Tensor, Tensor]]) -> Any:
    def hook(mod: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else kwargs.get("hidden_states")
        if given is not None:
            out = first(out)
            # Falcon adds to what its MLP returned in place
            seen[id(mod)] = (given, out.clone() if isinstance(out, Tensor) else out)

    return module.register_forward_hook(hook, with_kwargs=True)


@torch.no_grad()
def run(model: nn.Module, inputs: dict[str, Any]) -> tuple[dict[int, tuple[Tensor, Tensor]], Any]:
    """Input and output of every module of one forward pass, and what the model returned."""
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    handles = [record(module, seen) for module in model.modules() if module is not model]
    try:
        out = model(**inputs, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    return seen, out


def apply_norm(block: nn.Module, path: str | None, x: Tensor) -> Tensor:
    return x if path is None else block.get_submodule(path)(x)


@each("family", CASES)
@torch.no_grad()
def test_every_block_is_the_sum_that_the_table_states(family: str, tiny_model: Tiny) -> None:
    """x' = after(x + output(sum of branches)), branch by branch from what each module returned, is the block's output;
    and each branch was handed norm(x)."""
    model, inputs = tiny_model(family)
    seen, _ = run(model, inputs)
    found = stacks_of(model)
    assert found
    for stack, base in found:
        blocks = model.get_submodule(join_path(base, stack.blocks))
        assert len(blocks) >= 2
        for block in blocks:
            x, wanted = seen[id(block)]
            for place in stack.sublayers:
                update = 0
                for branch in place.branches:
                    y, u = seen[id(block.get_submodule(branch.modules[0]))][0], None
                    read = apply_norm(block, branch.norm, x)
                    torch.testing.assert_close(y.view(read.shape), read, rtol=1e-6, atol=1e-6)
                    u = seen[id(block.get_submodule(branch.modules[-1]))][1]
                    scale = getattr(block, branch.scale) if isinstance(branch.scale, str) else branch.scale or 1.0
                    update = update + scale * u.view(x.shape)
                x = apply_norm(block, place.after, x + apply_norm(block, place.output, update))
            torch.testing.assert_close(x, wanted, rtol=1e-5, atol=1e-5)


def test_sublayers_that_are_taken_apart_wrongly_are_noticed(tiny_model: Tiny) -> None:
    """The test above can fail: OLMo-2 read as Llama (no input norm there) has no such modules."""
    model, _ = tiny_model("olmo2")
    (wrong,) = anatomy(SimpleNamespace(model_type="llama"))
    with pytest.raises(AttributeError):
        model.get_submodule("model.layers.0").get_submodule(wrong.sublayers[0].branches[0].reader)


@each("family", CASES)
def test_blocks_see_the_hidden_states_of_the_model(family: str, tiny_model: Tiny) -> None:
    model, inputs = tiny_model(family)
    seen, out = run(model, inputs)
    for stack, base in stacks_of(model):
        states = getattr(out, "hidden_states", None)
        if states is None:
            states = getattr(out, f"{stack.name}_hidden_states")
        for k, block in enumerate(model.get_submodule(join_path(base, stack.blocks))):
            assert torch.equal(seen[id(block)][0], states[k])


@each("family", CASES)
def test_norms_at_the_ends(family: str, tiny_model: Tiny) -> None:
    """entry and exit norms stand where the table says; every norm of the model's width that runs is in the table."""
    model, inputs = tiny_model(family)
    seen, _ = run(model, inputs)
    listed = set()
    for stack, base in stacks_of(model):
        blocks = model.get_submodule(join_path(base, stack.blocks))
        if stack.entry:
            norm = model.get_submodule(join_path(base, stack.entry))
            listed.add(id(norm))
            torch.testing.assert_close(seen[id(norm)][1], seen[id(blocks[0])][0])
        if stack.exit:
            norm = model.get_submodule(join_path(base, stack.exit))
            listed.add(id(norm))
            torch.testing.assert_close(seen[id(norm)][0], seen[id(blocks[-1])][1])
        assert stack.embedding is not None
        assert model.get_submodule(join_path(base, stack.embedding)) is not None
        listed |= {id(b.get_submodule(path)) for b in blocks for place in stack.sublayers for path in place.norms}
    for name, module in model.named_modules():
        if "norm" in type(module).__name__.lower() and id(module) in seen:
            inside = any(
                part in name
                for part in ("q_norm", "k_norm", "transform", "lm_head", "head.norm", "vision", "projector")
            )
            assert inside or id(module) in listed, name


@each("family", CASES)
def test_kinds_of_norm_and_stored_gains(family: str, tiny_model: Tiny) -> None:
    """rms or layer, and gain_offset: what each norm computes from its own weight."""
    model, _ = tiny_model(family)
    for stack, base in stacks_of(model):
        block = model.get_submodule(join_path(base, stack.blocks))[0]
        for place in stack.sublayers:
            for path in place.norms:
                norm = block.get_submodule(path)
                if isinstance(norm, nn.Identity):
                    continue
                weight = getattr(norm, "weight", None)
                x = torch.randn(4, 32)
                centred = x - x.mean(-1, keepdim=True) if stack.norm == "layer" else x
                wanted = (
                    centred
                    / centred.square().mean(-1, keepdim=True).sqrt()
                    * (1 if weight is None else weight + stack.gain_offset)
                )
                if getattr(norm, "bias", None) is not None:
                    wanted = wanted + norm.bias
                torch.testing.assert_close(norm(x), wanted, rtol=1e-4, atol=1e-4)


@each("family", CASES)
def test_dropout_stands_where_the_table_says(family: str, tiny_model: Tiny) -> None:
    """A dropout path is a Dropout, or (OPT) the block's own probability; every other Dropout is in a branch."""
    model, _ = tiny_model(family)
    for stack, base in stacks_of(model):
        block = model.get_submodule(join_path(base, stack.blocks))[0]
        paths = [b.dropout for place in stack.sublayers for b in place.branches if b.dropout]
        inside = tuple(m for place in stack.sublayers for b in place.branches for m in b.modules)
        for path in paths:
            value = attrgetter(path)(block) if isinstance(path, str) else path
            assert isinstance(value, nn.Dropout | float)
        for name, module in block.named_modules():
            if isinstance(module, nn.Dropout):
                assert name in paths or name.startswith(inside), name


def test_the_cases_cover_the_table(tiny_model: Tiny) -> None:
    assert {tiny_model(name)[0].config.model_type for name in FAMILIES} == set(FAMILIES)


def test_unknown_model_type() -> None:
    with pytest.raises(ConfigError, match=r"unknown model type 'lama' \(valid: .*--blocks") as caught:
        anatomy(SimpleNamespace(model_type="lama"))
    assert "\n" not in str(caught.value)


@each(
    "text, wanted",
    [
        ("attn:norm=ln_1,branch=attn", Sublayer("attn", (Branch(("attn",), "ln_1"),))),
        ("mlp:branch=fc1>act>fc2,after=ln", Sublayer("mlp", (Branch(("fc1", "act", "fc2")),), after="ln")),
        ("parallel:norm=ln,branch=a+b.c", Sublayer("parallel", (Branch(("a",), "ln"), Branch(("b.c",), "ln")))),
        ("parallel:norm=m+n,branch=a+b", Sublayer("parallel", (Branch(("a",), "m"), Branch(("b",), "n")))),
        ("attn:branch=a,output=n,dropout=d", Sublayer("attn", (Branch(("a",), None, "d"),), output="n")),
    ],
)
def test_modules_by_hand(text: str, wanted: Sublayer) -> None:
    assert sublayer(text) == wanted


@each(
    "text, message",
    [
        ("atn:branch=a", "did you mean 'attn'"),
        ("attn:brunch=a", "did you mean 'branch'"),
        ("attn:norm=ln", "names no branch"),
        ("attn:norm=,branch=a", "norm is empty"),
        ("attn", "names no branch"),
        ("parallel:norm=a+b,branch=a+b+c", "2 paths of norm for 3 branches"),
    ],
)
def test_modules_by_hand_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        sublayer(text)


def test_a_stack_by_hand_is_that_of_the_table() -> None:
    by_hand = Stack.by_hand("h", ["attn:norm=ln_1,branch=attn", "mlp:norm=ln_2,branch=mlp"], exit="ln_f")
    (table,) = anatomy(SimpleNamespace(model_type="gpt2"))
    assert (by_hand.blocks, by_hand.sublayers, by_hand.exit) == (table.blocks, table.sublayers, table.exit)
    with pytest.raises(ConfigError, match="at least one sub-layer"):
        Stack.by_hand("h", [])
