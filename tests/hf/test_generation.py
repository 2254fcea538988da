"""Text is the same however it is generated, with and without a cache, in every release of transformers."""

import copy
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from geonorm import Decoder, DecoderConfig, hf
from geonorm.hf import versions
from geonorm.hf.versions import CACHE, TESTED
from geonorm.lab.data import NO_TEXT, load_tokenizer

from ..conftest import CASES

NEW = 5
WRITERS = [case for case, (kind, _) in CASES.items() if kind.endswith(("CausalLM", "LMHeadModel", "GPT2LMHeadModel"))]
"""Families that write a text after a text."""
THEIR_FAULTS = {
    "continuous batching": {"gpt_neox", "opt", "opt-post", "bert-decoder"},
    "static cache": {"falcon-sequential"},
}
"""Ways in which the stock models of transformers 5.24 raise."""


def by_hand(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """The text from whole forward passes, which no release of transformers changes."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    for _ in range(NEW):
        positions = {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)} if takes_positions else {}
        logits = model(ids, attention_mask=mask, use_cache=False, **positions).logits[:, -1]
        ids, mask = torch.cat((ids, logits.argmax(-1, keepdim=True)), 1), torch.cat((mask, mask[:, -1:]), 1)
    return ids


def ways(model: Any, helper: Any, ids: Tensor, mask: Tensor, case: str) -> Iterator[tuple[str, Any, Any]]:
    """Each way to generate: its name, its text, and the text that is right. The first text is padded on the left."""
    whole = by_hand(model, ids, mask)
    alone = by_hand(model, ids[1:], mask[1:])

    def write(rows: slice = slice(None), **settings: Any) -> Any:
        return model.generate(
            ids[rows], attention_mask=mask[rows], max_new_tokens=NEW, do_sample=False, pad_token_id=0, **settings
        )

    yield "greedy", write(), whole
    yield "greedy without a cache", write(use_cache=False), whole
    yield "beams", write(num_beams=3), write(num_beams=3, use_cache=False)
    if model._can_compile_fullgraph and case not in THEIR_FAULTS["static cache"]:
        yield "static cache", write(cache_implementation="static", disable_compile=True), whole
    yield "assisted", write(slice(1, 2), assistant_model=helper), alone
    if model._supports_attention_backend and case not in THEIR_FAULTS["continuous batching"]:
        prompts = [row[seen == 1].tolist() for row, seen in zip(ids, mask, strict=True)]
        settings = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
        paged = transformers.ContinuousBatchingConfig(block_size=8, num_blocks=16, max_batch_tokens=32)
        batch = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=paged)
        yield "continuous batching", [request.generated_tokens for request in batch.values()], whole[:, -NEW:].tolist()


@torch.no_grad()
def check(model: Any, helper: Any, case: str = "") -> None:
    model.generation_config.eos_token_id = helper.generation_config.eos_token_id = None
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    wrong = [
        name
        for name, text, right in ways(model, helper, ids, mask, case)
        if not (torch.equal(text, right) if isinstance(text, Tensor) else text == right)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("scheme", "fields"),
    [
        ("geonorm", {"positions": "learned"}),
        ("geonorm", {"sliding_window": 4, "full_every": 2}),
        ("ngpt", {"block": "parallel"}),
        ("siamese", {"sliding_window": 4}),
        ("hyper", {}),
    ],
)
def test_our_models(scheme: str, fields: dict[str, Any], build: Callable[..., Any]) -> None:
    check(build(scheme, **fields), build("pre", num_hidden_layers=1))


WIDE = [("llama", "hyper(n=2)"), ("llama", "attnres"), ("gptj", "attnres"), ("llama", "mix(post, pre, share=0.5)")]
"""Streams of another shape, and blocks of another form."""


@pytest.mark.parametrize(("case", "scheme"), [*((case, "geonorm") for case in WRITERS), *WIDE])
def test_applied(case: str, scheme: str, tiny_model: Callable[[str], Any]) -> None:
    stock, _ = tiny_model(case)
    model = copy.deepcopy(stock)
    hf.apply(model, scheme)
    check(model, copy.deepcopy(stock), case)


def exported(build: Callable[..., Any], tmp_path: Path) -> Any:
    """A model of the class in the modeling file that a folder brings."""
    shape = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocab_size": 257, "context": 64}
    torch.manual_seed(0)
    decoder, text = Decoder(DecoderConfig(**shape)).eval(), load_tokenizer("byte", NO_TEXT, 257).json
    folder = hf.export(decoder, text, 256, tmp_path / "model", remote_code=True)
    kind = get_class_from_dynamic_module("modeling_geonorm.GeoNormForCausalLM", folder)
    assert kind.__module__.startswith("transformers_modules")
    return kind.from_pretrained(folder).eval()


def ours(build: Callable[..., Any], tmp_path: Path) -> Any:
    return build("geonorm")


BOTH = pytest.mark.parametrize("model_of", [ours, exported])


def test_a_folder_with_its_own_code(tmp_path: Path, build: Callable[..., Any]) -> None:
    model = exported(build, tmp_path)
    check(model, copy.deepcopy(model))


@torch.no_grad()
@BOTH
def test_what_no_part_of_the_model_knows_is_refused(
    model_of: Any, build: Callable[..., Any], ids: Tensor, tmp_path: Path
) -> None:
    model = model_of(build, tmp_path)
    for wrong in ("past_key_value", "token_type_ids", "kv_cache"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'"):
            model(ids, **{wrong: None})


@BOTH
def test_outside_of_the_releases_that_were_tested_is_a_warning(
    model_of: Any, build: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range is that of the package."""
    bounds = "transformers>={}.{},<{}.{}".format(*TESTED[0], TESTED[1][0], TESTED[1][1] + 1)
    assert bounds in (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for version in ("5.22.2", "6.0.0", f"5.{TESTED[1][1] + 1}.0.dev0"):
        monkeypatch.setattr(versions.transformers, "__version__", version)
        with pytest.warns(UserWarning, match=f"tested with transformers 5.23 to 5.24, and this is {version}"):
            model_of(build, tmp_path / version)


@torch.no_grad()
@BOTH
def test_the_cache_has_two_names_and_holds_what_came_before(
    model_of: Any, build: Callable[..., Any], ids: Tensor, tmp_path: Path
) -> None:
    model = model_of(build, tmp_path)
    right, mask = model(ids).logits[:, 5:], torch.ones_like(ids)
    for name in ("past_key_values", "cache"):
        cache = getattr(model(ids[:, :5], use_cache=True), CACHE)
        found = model(ids[:, 5:], attention_mask=mask, **{name: cache}).logits
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="two names of the same"):
        model(ids, cache=cache, past_key_values=cache)
    for wrong in (None, transformers.DynamicCache(config=model.config)):
        with pytest.raises(ValueError, match="about 9 tokens, but the cache holds 0 and 4 follow"):
            model(ids[:, 5:], attention_mask=mask, cache=wrong)
