"""From a run to a folder that transformers loads, alone if need be; and refusals that leave nothing behind."""

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import transformers

from geonorm import Decoder, DecoderConfig, elsewhere, hf, names
from geonorm.cli.main import main
from geonorm.errors import CheckpointError, ConfigError, UntrustedCode
from geonorm.hf.export import fast_tokenizer
from geonorm.hf.remote import modeling_source
from geonorm.lab.data import NO_TEXT, load_tokenizer
from geonorm.lab.open import open_run
from geonorm.schemes import parse

from ..rows import each
from .fresh import WITHOUT, python

ALONE = (
    WITHOUT
    + """
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
found = {}
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    ids = torch.arange(2, 20).view(2, 9)
    found[folder] = model(ids).logits, model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
torch.save(found, sys.argv[1])
assert not [name for name in sys.modules if name.split(".")[0] == "geonorm"]
"""
)


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    return tmp_path / "model"


def test_a_run_comes_back_with_equal_logits(run: Path, folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    ids = torch.arange(2, 20).view(2, 9)
    card, summary = (folder / "README.md").read_text(), json.loads((run / "summary.json").read_text())
    facts = (f"{summary['tokens']:,}", f"{summary['val_loss']:.4f}", "| seed | 0 |", "Trained on `small.txt` alone")
    assert all(fact in card for fact in facts) and str(run.parent) not in card
    again = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(again(ids).logits, open_run(run).model(ids))


def test_tokenizer_and_generation_settings_come_along(run: Path, folder: Path) -> None:
    ours = load_tokenizer(str(run / "tokenizer.json"), NO_TEXT, 300)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "the cat number 12 sat: ünïcödé  and   spaces\n"
    assert theirs(text).input_ids == ours.encode([text])[0].tolist() and theirs.is_fast
    assert theirs.decode(theirs(text).input_ids) == text
    assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == ours.eos
    settings = transformers.GenerationConfig.from_pretrained(folder)
    assert settings.eos_token_id == settings.pad_token_id == settings.bos_token_id == ours.eos


@pytest.mark.parametrize("mask", [None, 257])
def test_what_a_published_tokenizer_puts_before_texts_is_left_out(mask: int | None) -> None:
    """Training encodes without it, so that it was never seen."""
    tokenizer = json.loads(load_tokenizer("byte", NO_TEXT, 257).json)
    first = {**tokenizer["added_tokens"][0], "id": 257, "content": "<|first|>"}
    tokenizer["added_tokens"].append(first)
    before = {"SpecialToken": {"id": "<|first|>", "type_id": 0}}
    text, other = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "single": [before, text], "pair": [before, text, other],
        "special_tokens": {"<|first|>": {"id": "<|first|>", "ids": [257], "tokens": ["<|first|>"]}},
    }  # fmt: skip
    plain = fast_tokenizer(json.dumps(tokenizer), 256, 64, mask=mask)
    assert plain("ab").input_ids == plain("a", "b").input_ids == [97, 98]


def test_a_token_for_padding_is_apart_from_the_end(tmp_path: Path) -> None:
    """In config.json too; a stock embedding would not learn that row."""
    tokenizer = json.loads(load_tokenizer("byte", NO_TEXT, 257).json)
    extra = {**tokenizer["added_tokens"][0], "id": 257, "content": "<|padding|>"}
    text = json.dumps({**tokenizer, "added_tokens": [*tokenizer["added_tokens"], extra]})
    decoder = Decoder(
        DecoderConfig(scheme="pre(entry=embedding)", layers=1, width=16, heads=2, hidden=16, vocab_size=258)
    )
    for layout in ("geonorm", "llama"):
        to = hf.export(decoder, text, 256, tmp_path / layout, layout=layout)
        for file in ("config.json", "generation_config.json"):
            found = json.loads((to / file).read_text())
            assert (found["pad_token_id"], found["eos_token_id"], found["bos_token_id"]) == (257, 256, 256)
        assert transformers.AutoTokenizer.from_pretrained(to).pad_token == "<|padding|>"
        assert len({path.stat().st_mode for path in to.iterdir()}) == 1
    with pytest.raises(CheckpointError, match="cannot write"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
        hf.export(decoder, text, 256, tmp_path / "full")
    assert {path.name for path in tmp_path.iterdir()} == {"geonorm", "llama"}
    stock = hf.export(decoder, json.dumps(tokenizer), 256, tmp_path / "stock", layout="llama")
    assert json.loads((stock / "config.json").read_text())["pad_token_id"] is None


@each("layout, kind", [("stock", "LlamaForCausalLM"), ("mistral", "MistralForCausalLM")])
def test_a_run_in_a_stock_layout(layout: str, kind: str, run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "llama"), "--layout", layout]) == 0
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    assert type(llama).__name__ == kind and "import geonorm" not in (tmp_path / "llama" / "README.md").read_text()
    ids = torch.arange(2, 20).view(2, 9)
    torch.testing.assert_close(llama(ids).logits, open_run(run).model(ids), rtol=1e-5, atol=1e-5)


@each("scheme", [*names(), "mix(ngpt, geonorm)"])
def test_remote_code_of_every_scheme_is_one_file_without_the_package(scheme: str) -> None:
    text = modeling_source(parse(scheme))
    space: dict[str, Any] = {"__name__": f"made_for_{abs(hash(scheme))}"}
    module = type(sys)(space["__name__"])
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, "modeling_geonorm.py", "exec"), module.__dict__)  # noqa: S102
        config = module.GeoNormConfig(
            scheme=scheme, hidden_size=16, num_hidden_layers=2, intermediate_size=16, vocab_size=31
        )
        torch.manual_seed(0)
        model = module.GeoNormForCausalLM(config).eval()
    finally:
        del sys.modules[module.__name__]
    torch.manual_seed(0)
    ours = hf.GeoNormForCausalLM(hf.GeoNormConfig(**config.to_dict())).eval()
    ids = torch.arange(18).view(2, 9)
    assert torch.equal(model(ids).logits, ours(ids).logits)
    own = "import geonorm", "from geonorm", "from ."
    assert not any(line.strip().startswith(own) for line in text.splitlines()) and "triton" not in text.lower()


HALF = """
from dataclasses import dataclass
from geonorm import Placement
from geonorm.schemes.base import add as plus

PART = 0.5

@dataclass(frozen=True)
class Half(Placement):
    share: float = PART

    parts = {"input": "norm"}

    def write(self, x, u, p, site, h=1.0):
        return plus(x, u, self.share, h)
"""
SMALL = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "context": 32, "vocab_size": 257}


@pytest.fixture
def elsewhere_model(tmp_path: Path, monkeypatch: Any) -> Any:
    """A folder with a scheme from elsewhere, made by someone else: nobody has typed its name here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "theirs"))
    (tmp_path / "half_of_it.py").write_text(HALF)
    decoder = Decoder(DecoderConfig("./half_of_it.py:Half(share=0.25)", **SMALL))

    def made(**settings: Any) -> tuple[Any, Path]:
        byte = load_tokenizer("byte", NO_TEXT, 257)
        folder = hf.export(decoder, byte.json, byte.eos, tmp_path / "model", **settings)
        (tmp_path / "half_of_it.py").unlink()
        monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
        elsewhere.MODULES.clear()
        for name in [name for name in sys.modules if "half_of_it" in name]:
            del sys.modules[name]
        return decoder, folder

    return made


@pytest.mark.parametrize("auto", [True, False])
def test_a_folder_runs_the_scheme_that_it_brings_when_that_is_trusted(auto: bool, elsewhere_model: Any) -> None:
    decoder, folder = elsewhere_model()
    kept = json.loads((folder / "config.json").read_text())["scheme_source"]["./half_of_it.py"]
    assert kept["source"] == HALF and kept["interface"] == 2
    assert kept["sha256"] == hashlib.sha256(HALF.encode()).hexdigest()
    load = (transformers.AutoModelForCausalLM if auto else hf.GeoNormForCausalLM).from_pretrained
    for settings in ({}, {"trust_remote_code": False}):
        with pytest.raises(UntrustedCode, match=r"names code, ./half_of_it.py: .*trust_remote_code=True"):
            load(folder, **settings)
    assert not [name for name in sys.modules if "half_of_it" in name]
    model = load(folder, trust_remote_code=True).eval()
    ids = torch.arange(2, 20).view(2, 9)
    assert torch.equal(model(ids).logits, decoder(ids)) and model.config.scheme == "./half_of_it.py:Half(share=0.25)"
    model.save_pretrained(folder.parent / "again")
    assert torch.equal(load(folder.parent / "again").eval()(ids).logits, decoder(ids))


def test_a_name_in_a_folder_imports_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """The module lies beside the configuration, and the folder is the working directory and on Python's path."""
    hf.GeoNormForCausalLM(hf.GeoNormConfig(hidden_size=16, num_hidden_layers=1, vocab_size=61)).save_pretrained(
        tmp_path
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "code_of_it").mkdir()
    (tmp_path / "code_of_it" / "rule.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + HALF)
    settings = json.loads((tmp_path / "config.json").read_text())
    for kind in ("geonorm", "geonorm_applied"):
        stock = {"stock_type": "llama"} if kind == "geonorm_applied" else {}
        changed = {**settings, **stock, "model_type": kind, "scheme": "code_of_it.rule:Half"}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        for load in (transformers.AutoConfig.from_pretrained, transformers.AutoModelForCausalLM.from_pretrained):
            with suppress(UntrustedCode):
                load(tmp_path, trust_remote_code=False)
                assert load == transformers.AutoConfig.from_pretrained  # the configuration is text like any other
        with pytest.raises(UntrustedCode, match=r"names code, code_of_it\.rule"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_the_modeling_file_carries_a_scheme_from_elsewhere(elsewhere_model: Any, tmp_path: Path) -> None:
    decoder, folder = elsewhere_model(remote_code=True)
    python(ALONE, tmp_path / "found", folder)
    found = torch.load(tmp_path / "found")
    torch.testing.assert_close(found[str(folder)][0], decoder(torch.arange(2, 20).view(2, 9)), rtol=1e-5, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["scheme"] == "./half_of_it.py:Half(share=0.25)"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("PART = 0.5", "import geonorm\nPART = 1 / len(geonorm.names())", "write `from geonorm"),
        ("from dataclasses", "import math as torch\nfrom dataclasses", None),
        ("PART", "REGISTRY", "REGISTRY is the name of two things"),
        ("PART = 0.5", "PART = 0.5\nPART *= 2", "'PART [*]= 2'"),
        ("PART = 0.5", "PART, OTHER = 0.5, 1", "'PART, OTHER = 0.5, 1'"),
    ],
)
def test_what_the_modeling_file_cannot_carry(old: str, new: str, said: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd_rule.py").write_text(HALF.replace(old, new))
    monkeypatch.syspath_prepend(tmp_path)
    scheme = parse("./odd_rule.py:Half")
    if said is None:  # an import that is not used stays behind
        assert "import math as torch" not in modeling_source(scheme)
        return
    with pytest.raises(ConfigError, match="--remote-code cannot carry .*" + said):
        modeling_source(scheme)
