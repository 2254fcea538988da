"""Stacks of models in words and as JSON. That their sums, norms and dropout are those of the blocks that run is proved
in tests/hf/test_apply.py: under its own scheme, made from its stack, a model gives what it gave."""

import json
from dataclasses import asdict

from geonorm.measure.anatomy import FAMILIES, Branch, Stack, Sublayer, bert

from ..conftest import Tiny
from ..rows import each


def test_the_cases_cover_the_families_by_name(tiny_model: Tiny) -> None:
    cases = {name for name, stacks in FAMILIES.items() if stacks is not bert or name in ("bert", "roberta")}
    assert {tiny_model(name)[0].config.model_type for name in cases} == cases


@each("text, placement, sublayer", [
        ("attn:norm=ln_1,branch=attn", "pre", Sublayer("attn", (Branch(("attn",), "ln_1"),))),
        ("mlp:branch=fc1>act>fc2,after=ln", "post", Sublayer("mlp", (Branch(("fc1", "act", "fc2")),), after="ln")),
        ("parallel:norm=m+n,branch=a+b", "pre", Sublayer("parallel", (Branch(("a",), "m"), Branch(("b",), "n")))),
        ("attn:norm=m,branch=a,output=n", "peri", Sublayer("attn", (Branch(("a",), "m", 0.1),), output="n")),
    ])  # fmt: skip
def test_a_sub_layer_in_words_and_a_stack_through_json(text: str, placement: str, sublayer: Sublayer) -> None:
    assert (sublayer.text, sublayer.placement) == (text, placement)
    stack = Stack("decoder", "h", (sublayer,), returns=("attn",), layers=((sublayer,), ()))
    assert Stack.from_dict(json.loads(json.dumps(asdict(stack)))) == stack
