"""The encoder in transformers: its model's own function, in every way that transformers may call it, and its folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from geonorm import Decoder, hf
from geonorm.cli.main import main
from geonorm.hf.config import NAMES
from geonorm.hf.export import adapt, hf_name
from geonorm.lab.open import open_run
from geonorm.models.config import BERT

from ..rows import each
from .conftest import train_run
from .fresh import WITHOUT, python

LAYOUTS: dict[str, dict[str, Any]] = {
    "rotary": {"is_causal": False},
    "BERT": {NAMES[name]: value for name, value in BERT.items()} | {"num_key_value_heads": 4},
    "parallel, untied": {"is_causal": False, "block": "parallel", "transform": True},
}


@each(
    "scheme, layout",
    [("geonorm", "rotary"), ("post(entry=embedding)", "BERT"), ("hyper", "parallel, untied"), ("ngpt", "BERT")],
)
def test_it_is_its_model_and_survives_saving(scheme: str, layout: str, build: Any, ids: Any, tmp_path: Path) -> None:
    model = build(scheme, **LAYOUTS[layout])
    own = Decoder(model.config.shape()).eval()
    own.load_state_dict({name: model.state_dict()[hf_name(name)] for name in own.state_dict()})
    torch.testing.assert_close(model(ids).logits, own(ids), rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    again, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and type(again) is hf.GeoNormForMaskedLM
    assert torch.equal(model(ids).logits, again(ids).logits) and again.config.shape() == own.config
    labels = torch.where(torch.arange(9) % 3 == 0, ids, -100)
    torch.testing.assert_close(model(ids, labels=labels).loss, own.loss(ids, labels), rtol=1e-5, atol=1e-6)
    shared = adapt(own)
    assert type(shared) is hf.GeoNormForMaskedLM and shared.lm_head.weight.data_ptr() == own.head.weight.data_ptr()


@each("layout", LAYOUTS)
def test_padding_at_the_end_and_every_way_to_attend(layout: str, build: Any, ids: Any) -> None:
    model = build(**LAYOUTS[layout])
    plain = model(ids).logits
    padded = torch.cat((ids, torch.zeros(2, 4, dtype=ids.dtype)), 1)
    mask = torch.cat((torch.ones_like(ids), torch.zeros(2, 4, dtype=ids.dtype)), 1)
    torch.testing.assert_close(model(padded, attention_mask=mask).logits[:, :9], plain, rtol=1e-4, atol=1e-5)
    model.set_attn_implementation("eager")
    out = model(ids, output_attentions=True, output_hidden_states=True)
    torch.testing.assert_close(out.logits, plain, rtol=1e-4, atol=1e-5)
    assert (out.attentions[0] > 0).all(), "every token sees every other"
    assert [state.shape for state in out.hidden_states] == [(2, 9, 32)] * 3


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = "--objective mlm --preset nano-bert --model.context 16".split()
    return train_run(tmp_path_factory.mktemp("encoder"), *words)


ALONE = (
    WITHOUT
    + """
import torch
from transformers import AutoModelForMaskedLM
model = AutoModelForMaskedLM.from_pretrained(sys.argv[2], trust_remote_code=True).eval()
torch.save(model(torch.arange(2, 20).view(2, 9)).logits, sys.argv[1])
"""
)


def test_a_run_as_a_folder(encoder: Path, tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal logits here and, with its modeling file, where the package is not; fill-mask."""
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    to = tmp_path / "model"
    assert main(["export", str(encoder), "--to", str(to), "--remote-code"]) == 0
    assert "transformers.AutoModelForMaskedLM.from_pretrained(" in capfd.readouterr().out
    assert not (to / "generation_config.json").exists()
    assert set(json.loads((to / "config.json").read_text())["auto_map"]) == {
        "AutoConfig", "AutoModel", "AutoModelForMaskedLM",
    }  # fmt: skip
    assert "pipeline_tag: fill-mask" in (to / "README.md").read_text()
    wanted = open_run(encoder).model(torch.arange(2, 20).view(2, 9))
    python(ALONE, tmp_path / "logits", to)
    torch.testing.assert_close(torch.load(tmp_path / "logits"), wanted, rtol=1e-5, atol=1e-6)
    fill = transformers.pipeline("fill-mask", str(to))
    words = fill(f"the cat number 7 sat on the{fill.tokenizer.mask_token} and")
    assert len(words) == 5 and all(0 < word["score"] < 1 for word in words)
