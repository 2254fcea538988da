"""Stacks of real models, by name or recognised: their ends, norms, dropout. That their sums are the blocks that run is
proved in tests/hf/test_apply.py: under its own scheme, made from its stack, a model gives the logits that it gave."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from geonorm.measure.anatomy import FAMILIES, Branch, Stack, Sublayer, join_path
from geonorm.measure.observe import stacks_of, watch_calls

from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
NOT_OF_THE_STREAM = ("q_norm", "k_norm", "transform", "lm_head", "head.norm", "vision", "projector")


def test_the_cases_cover_the_families_by_name(tiny_model: Tiny) -> None:
    assert {tiny_model(name)[0].config.model_type for name in FAMILIES} == set(FAMILIES)


@torch.no_grad()
def test_ends_and_dropout_of_every_family(family: str, tiny_model: Tiny) -> None:
    """Entry and exit norms stand around the blocks; every norm of the model's width that runs is listed; a dropout is a
    Dropout, or a probability, and every other Dropout is in a branch."""
    model, inputs = tiny_model(family)
    calls: dict[str, tuple[Tensor, Tensor]] = {}
    named = {name: module for name, module in model.named_modules() if not isinstance(module, nn.ModuleList) and name}

    def look(name: str, x: Tensor, y: Any) -> None:
        calls[name] = x, y

    blocks = [
        (stack, base, join_path(base, stack.blocks, str(layer)), layer)
        for stack, base in stacks_of(model)
        for layer in range(len(model.get_submodule(join_path(base, stack.blocks))))
    ]
    watched = {name: m for name, m in named.items() if "norm" in type(m).__name__.lower()}
    with watch_calls(watched | {path: named[path] for _, _, path, _ in blocks}, look):
        model(**inputs)
    listed = set()
    for stack, base, path, layer in blocks:
        ends = {"entry": join_path(base, stack.entry or ""), "exit": join_path(base, stack.exit or "")}
        if stack.entry and layer == 0:
            torch.testing.assert_close(calls[ends["entry"]][1], calls[path][0])
        if stack.exit and blocks[-1][2] == path:
            torch.testing.assert_close(calls[ends["exit"]][0], calls[path][1])
        assert stack.embedding is not None and join_path(base, stack.embedding) in named
        sublayers = stack.of(layer)
        listed |= {*ends.values(), *(join_path(path, norm) for part in sublayers for norm in part.norms)}
        branches = [branch for part in sublayers for branch in part.branches]
        inside = tuple(module for branch in branches for module in branch.modules)
        dropouts = [branch.dropout for branch in branches if branch.dropout]
        assert all(isinstance(d, float) or isinstance(named[join_path(path, d)], nn.Dropout) for d in dropouts)
        for name, module in named[path].named_modules():
            assert not isinstance(module, nn.Dropout) or name in dropouts or name.startswith(inside), name
    for name in calls.keys() & watched.keys():
        assert name in listed or any(part in name for part in NOT_OF_THE_STREAM), name


@each(
    "text, placement, sublayer",
    [
        ("attn:norm=ln_1,branch=attn", "pre", Sublayer("attn", (Branch(("attn",), "ln_1"),))),
        ("mlp:branch=fc1>act>fc2,after=ln", "post", Sublayer("mlp", (Branch(("fc1", "act", "fc2")),), after="ln")),
        ("parallel:norm=m+n,branch=a+b", "pre", Sublayer("parallel", (Branch(("a",), "m"), Branch(("b",), "n")))),
        ("attn:norm=m,branch=a,output=n", "peri", Sublayer("attn", (Branch(("a",), "m", 0.1),), output="n")),
    ],
)
def test_a_sub_layer_in_words_and_a_stack_through_json(text: str, placement: str, sublayer: Sublayer) -> None:
    assert (sublayer.text, sublayer.placement) == (text, placement)
    stack = Stack("decoder", "h", (sublayer,), returns=("attn",), layers=((sublayer,), ()))
    assert Stack.from_dict(json.loads(json.dumps(asdict(stack)))) == stack
