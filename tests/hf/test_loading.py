"""Model folders of older versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from geonorm import hf  # noqa: E402

from ..rows import each  # noqa: E402


@each("scheme", ["geonorm(learn=affine)", "rezero", "hyper", "geonorm"])
def test_a_folder_whose_scalars_have_no_dimension_is_read(scheme: str, build: Any, ids: Any, tmp_path: Path) -> None:
    """As versions up to 0.1 wrote them, into the model with a head and the one inside it; saved again they have one."""
    model = build(scheme, norm="dyt")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {name: t.reshape(()) if t.shape == (1,) else t for name, t in weights.items()}
    assert sum(t.dim() == 0 for name, t in old.items() if not name.endswith(".layer")) > 0
    save_file(old, tmp_path / "model.safetensors", {"format": "pt"})
    again, info = hf.GeoNormForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(model(ids).logits, again(ids).logits)
    assert all(p.dim() > 0 for p in again.parameters())
    inside = hf.GeoNormModel.from_pretrained(tmp_path)
    assert torch.equal(model.model(ids).last_hidden_state, inside(ids).last_hidden_state)
    again.save_pretrained(tmp_path / "new")
    assert {name: t.shape for name, t in load_file(tmp_path / "new" / "model.safetensors").items()} == {
        name: t.shape for name, t in weights.items()
    }
