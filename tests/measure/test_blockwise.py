"""A model whose blocks have weights only while they run is the whole model; what cannot be read so is one line."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.errors import ConfigError
from geonorm.measure.blockwise import load_one_block
from geonorm.measure.subject import Subject

from ..rows import each

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]
EVERY = "llama gemma2 olmo2 gpt2 gpt_neox gptj gpt_neo opt opt-post phi bert t5".split()


@each("case", EVERY)
def test_one_block_at_a_time_is_the_whole_model(case: str, tiny_model: Tiny, tmp_path: Path) -> None:
    model, inputs = tiny_model(case)
    folder = tmp_path / case
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    lean = load_one_block(str(folder), torch.device("cpu"))
    whole, parts = Subject(model), Subject(lean)
    resident = [sum(not p.is_meta for p in block.parameters()) for _, blocks in parts.blocks() for block in blocks]
    assert sum(resident) == 0
    most = []
    for _, blocks in parts.blocks():
        for block in blocks:
            everything = [b for _, others in parts.blocks() for b in others]
            block.register_forward_hook(
                lambda *_, e=everything: most.append(sum(any(not p.is_meta for p in b.parameters()) for b in e)),
                prepend=True,
            )
    whole.measure([inputs])
    parts.measure([inputs])
    assert set(most) == {1}
    assert sum(not p.is_meta for _, blocks in parts.blocks() for b in blocks for p in b.parameters()) == 0
    assert whole.capture.rows() == parts.capture.rows() and whole.capture.norm_rows() == parts.capture.norm_rows()


def test_one_block_at_a_time_keeps_in_fp32_what_transformers_keeps(tiny_model: Tiny, tmp_path: Path) -> None:
    model, inputs = tiny_model("t5")
    copy.deepcopy(model).half().save_pretrained(tmp_path)
    lean = load_one_block(str(tmp_path), torch.device("cpu"))
    whole = type(model).from_pretrained(tmp_path, dtype="auto").eval()
    dtypes = {name: p.dtype for name, p in whole.named_parameters()}
    assert set(dtypes.values()) == {torch.float16, torch.float32}
    assert {name: p.dtype for name, p in lean.named_parameters()} == dtypes
    subjects = Subject(whole), Subject(lean)
    for subject in subjects:
        subject.measure([inputs])
    assert subjects[0].capture.rows() == subjects[1].capture.rows()


@pytest.mark.parametrize("applied", [False, True])
def test_one_block_at_a_time_is_refused_for_a_model_under_a_scheme(
    applied: bool, tiny_model: Tiny, tmp_path: Path
) -> None:
    hf = pytest.importorskip("geonorm.hf")
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 61}
    model = copy.deepcopy(tiny_model("llama")[0]) if applied else hf.GeoNormForCausalLM(hf.GeoNormConfig(**size))
    if applied:
        hf.apply(model, "peri")
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="holds a model under a scheme, which cannot be read block by block: load it"):
        load_one_block(str(tmp_path), torch.device("cpu"))


def test_files_with_other_names_are_refused(tiny_model: Tiny, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model("llama")[0].save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    save_file({k.replace("mlp", "ffn"): v for k, v in stored.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"have no model.layers.0.mlp.*load it whole"):
        load_one_block(str(tmp_path), torch.device("cpu"))
    # transformers stores ViT under its old names, which its own loader translates
    tiny_model("vit")[0].save_pretrained(tmp_path / "vit")
    with pytest.raises(ConfigError, match="load it whole"):
        load_one_block(str(tmp_path / "vit"), torch.device("cpu"))


def test_damaged_weights_one_block_at_a_time(tiny_model: Tiny, tmp_path: Path) -> None:
    tiny_model("llama")[0].save_pretrained(tmp_path, max_shard_size="20KB")
    (file, *_) = sorted(tmp_path.glob("*.safetensors"))
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ConfigError, match="that can be read"):
        load_one_block(str(tmp_path), torch.device("cpu"))
    (tmp_path / "model.safetensors.index.json").write_text("{")
    with pytest.raises(ConfigError, match="that can be read"):
        load_one_block(str(tmp_path), torch.device("cpu"))
