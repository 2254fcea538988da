"""What the gains of `init="match"` are fitted on: the tokens of a probe, not its padding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from geonorm import hf
from geonorm.errors import ConfigError
from geonorm.hf.match import error

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
LENGTHS = torch.tensor([9, 4])
MASK = (torch.arange(9) < LENGTHS[:, None]).long()


def filled(ids: torch.Tensor, mask: torch.Tensor, fill: int | None) -> torch.Tensor:
    """ids with something else at padding; None: other ids at every place."""
    other = torch.randint_like(ids, 3, 60) if fill is None else torch.full_like(ids, fill)
    return torch.where(mask.bool(), ids, other)


@torch.no_grad()
@pytest.mark.parametrize("scheme", ["geonorm", "post", "hyper"])
@pytest.mark.parametrize("case", ["llama", "gpt_neox", "opt", "bert", "modernbert", "mixtral", "gpt2-cross"])
def test_what_stands_at_padding_counts_nowhere(case: str, scheme: str, tiny_model: Tiny) -> None:
    stock, inputs = tiny_model(case)
    found = []
    for fill in (5, 50, None):
        model = copy.deepcopy(stock)
        probe = {**inputs, "input_ids": filled(inputs["input_ids"], MASK, fill), "attention_mask": MASK}
        report = hf.apply(model, scheme, init="match", probe=probe)
        assert report.near.tokens == 13
        found.append((report.near.kept, report.near.matched, model(**inputs).logits))
    for *near, logits in found[1:]:
        assert near == pytest.approx(found[0][:2], rel=1e-3)
        assert error(logits, found[0][2]) < 1e-3


def test_padding_is_that_of_its_stack(tiny_model: Tiny) -> None:
    stock, inputs = tiny_model("t5")
    decoder = (torch.arange(7) < torch.tensor([2, 7])[:, None]).long()
    fitted = []
    for fill in (5, 50):
        model = copy.deepcopy(stock)
        probe = {
            "input_ids": filled(inputs["input_ids"], MASK, fill),
            "decoder_input_ids": filled(inputs["decoder_input_ids"], decoder, fill),
            "attention_mask": MASK,
            "decoder_attention_mask": decoder,
        }
        assert hf.apply(model, "geonorm", init="match", probe=probe).near.tokens == 9
        fitted.append([p for p in model.parameters() if p.dim() < 2])
    for one, other in zip(*fitted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_mask_without_padding_is_none_and_classes_are_no_tokens(tiny_model: Tiny) -> None:
    import transformers

    model, inputs = tiny_model("llama")
    fitted = [copy.deepcopy(model), copy.deepcopy(model)]
    hf.apply(fitted[0], "geonorm", init="match", probe=inputs)
    hf.apply(fitted[1], "geonorm", init="match", probe={**inputs, "attention_mask": torch.ones(2, 9)})
    assert all(torch.equal(one, other) for one, other in zip(*(m.parameters() for m in fitted), strict=True))
    config = copy.deepcopy(model.config)
    config.num_labels, config.pad_token_id = 9, 0
    classes = transformers.LlamaForSequenceClassification(config)
    report = hf.apply(classes, "geonorm", init="match", probe={**inputs, "attention_mask": MASK})
    assert report.near.tokens == 2


BAD = "the attention_mask of a probe is (batch, tokens) as its tokens are, 1 for tokens, 0 for padding; not "


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (torch.ones(2, 1, 9, 9), f"{BAD}(2, 1, 9, 9)"),
        (torch.ones(2, 8), f"{BAD}(2, 8)"),
        ({"full_attention": None}, f"{BAD}dict"),
        (torch.zeros(2, 9), "the probe has no tokens: its attention_mask is 0 everywhere"),
    ],
)
def test_masks_that_do_not_say_what_is_padding(mask: Any, said: str, tiny_model: Tiny) -> None:
    model, inputs = copy.deepcopy(tiny_model("llama"))
    with pytest.raises(ConfigError) as caught:
        hf.apply(model, "geonorm", init="match", probe={**inputs, "attention_mask": mask})
    assert str(caught.value) == said and "\n" not in str(caught.value)
    assert type(model).__name__ == "LlamaForCausalLM"


def test_an_output_that_the_mask_does_not_fit(tiny_model: Tiny) -> None:
    model, inputs = copy.deepcopy(tiny_model("llama"))
    with pytest.raises(
        ConfigError, match=r"padding of shape \(2, 9\) does not fit what the model computes, \(2, 1, 67"
    ):
        hf.apply(model, "geonorm", init="match", probe={**inputs, "attention_mask": MASK, "logits_to_keep": 1})
    assert type(model).__name__ == "LlamaForCausalLM"
