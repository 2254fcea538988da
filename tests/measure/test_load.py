"""A name that is neither a run nor a folder, or a folder of two models: said in one line."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import huggingface_hub
import torch
import transformers

from geonorm.errors import CheckpointError, ConfigError, near_folder
from geonorm.measure.load import check_name, context_of, load_config, load_model


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two runs, a model folder and a folder of something else."""
    monkeypatch.chdir(tmp_path)
    for name, file in (("runs/nano", "config.yaml"), ("runs/other", "config.yaml"), ("modell", "config.json")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "thesis").mkdir()
    return tmp_path


@pytest.mark.parametrize("change", [{"num_hidden_layers": 2}, {"intermediate_size": 24}])
def test_weights_of_another_model_are_refused(change: dict[str, int], tmp_path: Path) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, **shape)).save_pretrained(tmp_path)
    name = str(tmp_path)
    load_model(name, load_config(name), torch.device("cpu"))
    transformers.LlamaConfig(vocab_size=8, **{**shape, **change}).save_pretrained(tmp_path)
    for causal in (False, True):
        with pytest.raises(CheckpointError, match=r"do not agree on \S*layers\.\S+: one of the two"):
            load_model(name, load_config(name, causal=causal), torch.device("cpu"), causal=causal)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception | None], list[str]]:
    """hub(error): a hub that answers with it, or has every model; returns the names that it is asked for."""

    def make(error: Exception | None) -> list[str]:
        asked: list[str] = []

        def model_info(self: Any, name: str, **given: Any) -> None:
            asked.append(name)
            if error is not None:
                raise error

        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
        return asked

    return make


def test_the_context_by_whatever_name_a_configuration_has_it() -> None:
    names = "max_position_embeddings", "n_positions", "n_ctx"
    for values, most in (((64, 32, None), 64), ((None, None, 16), 16), ((None, None, None), None)):
        config = SimpleNamespace(model_type="of elsewhere", **dict(zip(names, values, strict=True)))
        assert context_of(config) == most


def test_the_nearest_run_or_folder(place: Path) -> None:
    assert near_folder("nanno") == near_folder("runs/nanno") == near_folder("nano") == ": did you mean 'runs/nano'?"
    assert near_folder("model") == ": did you mean 'modell'?"
    assert near_folder(str(place / "runs/othr")) == f": did you mean '{place}/runs/other'?"
    assert near_folder("zzz") == near_folder("nothing/alike") == ""


@pytest.mark.parametrize("name", ["nanno", "owner/nanno"])
def test_what_the_hub_says_decides(name: str, place: Path, hub: Any) -> None:
    names = hub(None)
    check_name(name)
    assert names == [name]
    hub(ConnectionError("no network"))
    with pytest.raises(ConfigError) as caught:
        check_name(name)
    wanted = f"there is no run and no model folder {name}, and the hub gives none (ConnectionError): did you mean"
    assert str(caught.value) == f"{wanted} 'runs/nano'?"
    asked = hub(None)
    for path in ("runs/deep/nanno", "/runs/nanno", "./nanno", "a b"):
        with pytest.raises(ConfigError, match=r"^there is no run and no model folder"):
            check_name(path)
    assert not asked
