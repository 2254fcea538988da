"""The configuration in transformers: the fields of the decoder under transformers' names, checked alike."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import transformers

from geonorm import DecoderConfig, hf
from geonorm.errors import ConfigError
from geonorm.hf.config import NAMES

from ..rows import each

PAGE = Path(__file__).parents[2] / "docs" / "huggingface.md"


@each(
    "given, said",
    [
        ({"scheem": "pre"}, "unknown key of GeoNormConfig 'scheem': did you mean 'scheme'?"),
        ({"scheme": "geonrom"}, "unknown scheme 'geonrom': did you mean 'geonorm'?"),
        ({"hidden_size": 30, "num_attention_heads": 4}, "model.width 30 must be an even multiple of model.heads 4"),
        ({"n_embd": 64}, "unknown key of GeoNormConfig 'n_embd': did you mean 'hidden_size'?"),
        ({"rms_norm_eps": 1e-5}, "unknown key of GeoNormConfig 'rms_norm_eps'"),
        ({"sliding_window": 1}, "sliding_window 1"),
    ],
)
def test_wrong_configurations_are_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hf.GeoNormConfig(**given)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


def test_configuration_holds_every_field_of_the_decoder() -> None:
    config = hf.GeoNormConfig()
    assert hf.GeoNormConfig.of(DecoderConfig()).to_dict() == config.to_dict()
    assert all(hasattr(config, NAMES[f.name]) for f in fields(DecoderConfig))
    shape = DecoderConfig(scheme="post", layers=3, width=24, heads=3, kv_heads=1, mlp="gelu", bias=True, rope_theta=5e5)
    assert hf.GeoNormConfig.of(shape).shape() == shape


def test_scheme_becomes_canonical_and_attributes_that_are_no_keys_stay_behind(tmp_path: Path) -> None:
    config = hf.GeoNormConfig(scheme="geonorm( alpha = 1.0,decay=sqrt )")
    assert config.scheme == "geonorm(decay=sqrt)"
    config.note = "mine"
    config.save_pretrained(tmp_path)
    again = transformers.AutoConfig.from_pretrained(tmp_path)
    assert json.loads(again.to_json_string()) == json.loads(config.to_json_string())
    assert "note" not in config.to_dict()
    assert config.auto_map == {} and "auto_map" not in config.to_dict()  # TRL reads it from every configuration


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        if "on the hub" not in block:
            exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102
