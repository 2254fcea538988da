"""A model under another scheme is saved as what it is: it loads again equal, and not as the stock model."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import transformers

import geonorm
from geonorm import hf
from geonorm.errors import ConfigError
from geonorm.schemes import names, parse

from ..conftest import CASES
from ..rows import each
from .fresh import SOURCE, python

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "T5ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ViTModel": "AutoModel",
}


def loaded(stock: type, folder: Path) -> Any:
    auto = next(getattr(transformers, auto) for end, auto in AUTO.items() if stock.__name__.endswith(end))
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


@torch.no_grad()
def returned(model: Any, inputs: dict[str, Any]) -> Tensor:
    out = model(**inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


# but for what no Auto class loads as a stock model either, and gemma3, of which apply wants the text model
LOADED = [family for family in CASES if family not in ("gemma3", "t5-encoder")]


@each("family, scheme", zip(LOADED, cycle(["geonorm(learn=gain, update=norm)", "peri"]), strict=False))
def test_saved_and_loaded(family: str, scheme: str, tiny_model: Tiny, tmp_path: Path) -> None:
    model, inputs = tiny_model(family)
    stock, model = type(model), copy.deepcopy(model)
    hf.apply(model, scheme)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    said = (
        rf"no stock {model.config.stock_type} but one under {parse(scheme)}: import geonorm.hf, then use an Auto class"
    )
    with pytest.raises(Exception, match=re.escape(said)):
        stock.from_pretrained(tmp_path)
    again = loaded(stock, tmp_path)
    assert isinstance(again, stock) and type(again).__name__ == f"Geonorm{stock.__name__}"
    assert again.config.scheme == str(parse(scheme)) and again.config.model_type == "geonorm_applied"
    assert torch.equal(returned(again, inputs), returned(model, inputs))
    with pytest.raises(ConfigError, match="was loaded from a folder"):
        hf.restore(again)
    with pytest.raises(ConfigError, match="already applied"):
        hf.apply(again, "post")


@each("case", ["llama", "gpt2", "t5", "vit"])
def test_pickled_it_is_the_same_in_another_process(case: str, tiny_model: Tiny, tmp_path: Path) -> None:
    """As `torch.save(model)` and whatever starts processes of its own do."""
    model, inputs = copy.deepcopy(tiny_model(case))
    model.set_attn_implementation("eager")  # which returns attention weights
    hf.apply(model, "peri")
    file = tmp_path / "model.pt"
    torch.save((model, inputs), file)
    script = """if True:
        import sys, torch
        model, inputs = torch.load(sys.argv[1], weights_only=False)
        with torch.no_grad():
            out = model(**inputs, output_attentions=True)
        attentions = len(out.get('attentions') or out.encoder_attentions)
        seen = [type(model).__name__, type(model.config).__name__, attentions]
        from geonorm import hf
        hf.restore(model)
        torch.save((out[0], *seen, type(model).__name__), sys.argv[1])
    """
    python(script, file, path=SOURCE)
    logits, name, config, attentions, restored = torch.load(file)
    assert torch.equal(logits, returned(model, inputs))
    assert name == type(model).__name__ and config == type(model.config).__name__
    assert attentions == model.config.num_hidden_layers and f"Geonorm{restored}" == name


@each("case, scheme", [*(("gpt2", name) for name in names()), ("t5", "lambdas")])
def test_every_parameter_of_a_scheme_is_loaded_as_it_was_saved(
    case: str, scheme: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    model = copy.deepcopy(tiny_model(case)[0])
    try:
        hf.apply(model, scheme)
    except ConfigError as refused:
        pytest.skip(str(refused))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    again = dict(type(model).from_pretrained(tmp_path).named_parameters())
    assert [name for name, own in model.named_parameters() if not torch.equal(again[name], own)] == []


def test_what_is_in_the_folder(tiny_model: Tiny, tmp_path: Path) -> None:
    model = copy.deepcopy(tiny_model("llama")[0])
    hf.apply(model, "geonorm")
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "geonorm_applied" and content["scheme"] == "geonorm"
    assert content["stock_type"] == "llama" and content["stock"]["hidden_size"] == 32
    assert "import geonorm.hf" in content["num_hidden_layers"] and "model_type" not in content["stock"]
    with pytest.raises(Exception, match=r"import geonorm\.hf, then use an Auto class"):
        transformers.LlamaConfig.from_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.num_hidden_layers == 3 and isinstance(config, transformers.LlamaConfig)
    assert config.auto_map == {} and "auto_map" not in content["stock"]  # TRL reads it from every configuration
    assert config.geonorm_version == content["geonorm_version"] == geonorm.__version__
    config.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["stock"] == content["stock"]
    content["stock_type"] = "lama"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"unknown stock_type in config\.json: 'lama'"):
        transformers.AutoConfig.from_pretrained(tmp_path)


@pytest.mark.parametrize(("case", "inner"), [("llama", "model"), ("gemma3", "model.language_model")])
def test_a_model_with_an_applied_one_inside_is_not_saved_as_stock(
    case: str, inner: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    """The part alone is: it loads again, and gives the whole the logits that it had."""
    model, inputs = tiny_model(case)
    model = copy.deepcopy(model)
    model.save_pretrained(tmp_path / "stock")
    report = hf.apply(model.get_submodule(inner), "geonorm")
    with pytest.raises(ConfigError, match=f"stock {type(model).__name__}, but {inner} in it is under geonorm: save"):
        model.save_pretrained(tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    model.get_submodule(inner).save_pretrained(tmp_path / "part")
    again = type(model).from_pretrained(tmp_path / "stock").eval()
    assert not torch.allclose(returned(again, inputs), returned(model, inputs), atol=0.1)
    again.set_submodule(inner, transformers.AutoModel.from_pretrained(tmp_path / "part").eval())
    again.tie_weights()
    assert torch.equal(returned(again, inputs), returned(model, inputs))
    report.undo()
    model.save_pretrained(tmp_path / "whole")


def test_another_process_loads_it_only_as_what_it_is(tiny_model: Tiny, tmp_path: Path) -> None:
    model, _ = tiny_model("gpt2")
    model = copy.deepcopy(model)
    hf.apply(model, "geonorm")
    model.save_pretrained(tmp_path)
    inputs = {"input_ids": torch.arange(3, 12)[None]}
    torch.save(returned(model, inputs), tmp_path / "logits.pt")
    script = """
import sys, torch, transformers
folder = sys.argv[1]
try:
    transformers.AutoModelForCausalLM.from_pretrained(folder)
except ValueError as error:
    assert "geonorm_applied" in str(error), error
else:
    raise SystemExit("transformers alone loaded it")
import geonorm.hf
model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
with torch.no_grad():
    logits = model(torch.arange(3, 12)[None]).logits
assert torch.equal(logits, torch.load(folder + "/logits.pt")) and model.config.scheme == "geonorm"
"""
    python(script, tmp_path, path=SOURCE)
