"""A model under another scheme is saved as what it is: it loads again equal, and not as the stock model."""

import copy
import json
import re
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import geonorm
from geonorm import hf
from geonorm.errors import ConfigError
from geonorm.schemes import names, parse

from ..conftest import CASES, Tiny
from ..rows import each
from .fresh import python
from .test_apply import returned

AUTO = {
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "T5ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ViTModel": "AutoModel",
}
# but for what no Auto class loads as a stock model either, and gemma3, of which apply wants the text model
LOADED = [family for family in CASES if family not in ("gemma3", "t5-encoder")]
REFUSED = ("hybrid", "ngpt", "angpt", "prores")


def moved(case: str, scheme: str, tiny_model: Tiny) -> tuple[Any, Any, dict[str, Any]]:
    """(stock class, the model under the scheme with every parameter moved, its inputs)."""
    stock, inputs = tiny_model(case)
    model = copy.deepcopy(stock)
    hf.apply(model, scheme)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return type(stock), model, inputs


@each("family, scheme", zip(LOADED, cycle(["geonorm(learn=gain, update=norm)", "peri"]), strict=False))
def test_saved_and_loaded(family: str, scheme: str, tiny_model: Tiny, tmp_path: Path) -> None:
    stock, model, inputs = moved(family, scheme, tiny_model)
    model.save_pretrained(tmp_path)
    auto = next(getattr(transformers, auto) for end, auto in AUTO.items() if stock.__name__.endswith(end))
    again, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert isinstance(again, stock) and type(again).__name__ == f"Geonorm{stock.__name__}"
    assert again.config.scheme == str(parse(scheme)) and again.config.model_type == "geonorm_applied"
    assert torch.equal(returned(again.eval(), inputs), returned(model, inputs))
    message = (
        f"no stock {stock.config_class.model_type} but one under {parse(scheme)}: import geonorm.hf, then use an Auto"
    )
    for kind in (stock, stock.config_class):
        with pytest.raises(Exception, match=re.escape(message)):
            kind.from_pretrained(tmp_path)
    for change, message in ((hf.restore, "nothing to restore"), (lambda m: hf.apply(m, "post"), "already applied")):
        with pytest.raises(ConfigError, match=message):
            change(again)


@each("case, scheme", [("t5", "lambdas"), *(("gpt2", name) for name in names() if name not in REFUSED)])
def test_every_parameter_of_a_scheme_is_loaded_as_it_was_saved(
    case: str, scheme: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    _, model, _ = moved(case, scheme, tiny_model)
    model.save_pretrained(tmp_path)
    again = dict(type(model).from_pretrained(tmp_path).named_parameters())
    assert [name for name, p in model.named_parameters() if not torch.equal(again[name], p)] == []


def test_what_is_in_the_folder(tiny_model: Tiny, tmp_path: Path) -> None:
    _, model, _ = moved("llama", "geonorm", tiny_model)
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["model_type"] == "geonorm_applied" and content["scheme"] == "geonorm"
    assert content["stock_type"] == "llama" and content["stock_stacks"][0]["blocks"] == "layers"
    assert content["stock_layers"] == 3 and "stock_layers" not in vars(model.config)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.num_hidden_layers == 3 and isinstance(config, transformers.LlamaConfig)
    assert config.auto_map == {} and "auto_map" not in content  # TRL reads it from every configuration
    assert config.geonorm_version == content["geonorm_version"] == geonorm.__version__
    config.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text()) == content


@pytest.mark.parametrize(("case", "inner"), [("llama", "model"), ("gemma3", "model.language_model")])
def test_a_model_with_an_applied_one_inside_is_not_saved_as_stock(
    case: str, inner: str, tiny_model: Tiny, tmp_path: Path
) -> None:
    """The part alone is, and gives the whole the logits that it had; after undo the whole is."""
    model, inputs = copy.deepcopy(tiny_model(case))
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


def test_a_model_of_code_from_elsewhere_is_saved_and_names_what_it_lacks(tmp_path: Path) -> None:
    """As `trust_remote_code` loads it: with `_auto_class`, and a type that transformers does not know."""
    about = {"model_type": "elsewhere", "_auto_class": "AutoConfig"}
    settings: Any = type("Settings", (transformers.LlamaConfig,), about)
    about = {"config_class": settings, "_auto_class": "AutoModelForCausalLM"}
    kind: Any = type("Model", (transformers.LlamaForCausalLM,), about)
    model = kind(settings(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2))
    hf.apply(model, "geonorm")
    model.save_pretrained(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ConfigError, match="elsewhere is a model of code from elsewhere: register"):
        transformers.AutoConfig.from_pretrained(tmp_path)


def test_weights_without_storage_are_filled_from_a_file(tiny_model: Tiny) -> None:
    """As accelerate does it; and what transformers reads in the module of a class is the stock model's."""
    stock, model, inputs = moved("llama", "geonorm(learn=gain)", tiny_model)
    with torch.device("meta"):
        again = type(model)(model.config)
    again.load_state_dict(model.state_dict(), assign=True)
    again.model.rotary_emb = model.model.rotary_emb  # its table is in no file
    assert torch.equal(returned(again.eval(), inputs), returned(model.eval(), inputs))
    assert type(again).__module__ == stock.__module__


def test_another_process_loads_it_only_as_what_it_is(tiny_model: Tiny, tmp_path: Path) -> None:
    _, model, _ = moved("gpt2", "geonorm", tiny_model)
    model.save_pretrained(tmp_path)
    torch.save(returned(model, {"input_ids": torch.arange(3, 12)[None]}), tmp_path / "logits.pt")
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
    python(script, tmp_path)
