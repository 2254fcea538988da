"""Every way a decoder may know positions, and norms without bias, in the adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from geonorm import Decoder
from geonorm.hf.export import adapt
from geonorm.hf.modeling import GeoNormForCausalLM
from geonorm.nn.config import preset

SMALL = {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "vocab_size": 96, "context": 32}


@pytest.mark.parametrize("scheme", ["pre(entry=embedding)", "geonorm", "ngpt"])
@pytest.mark.parametrize("positions", ["learned", "none"])
def test_logits_files_and_generation_are_those_of_the_decoder(scheme: str, positions: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    changes = {**SMALL, "positions": positions, "norm_bias": False}
    decoder = Decoder(preset("nano-gpt2", scheme=scheme, **changes)).eval()
    model = adapt(decoder)
    ids = torch.randint(0, 96, (2, 9))
    torch.testing.assert_close(model(ids).logits, decoder(ids), rtol=1e-5, atol=1e-5)
    model.save_pretrained(tmp_path)
    loaded = GeoNormForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.positions == positions and loaded.config.norm_bias is False
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    with_cache, without = (
        loaded.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False, use_cache=cache)
        for cache in (True, False)
    )
    assert torch.equal(with_cache, without)
    # left padding: positions count from the first token of the text
    padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), ids], dim=1)
    mask = torch.cat([torch.zeros(2, 3, dtype=torch.long), torch.ones_like(ids)], dim=1)
    places = (mask.cumsum(1) - 1).clamp(min=0)
    out = loaded(padded, attention_mask=mask, position_ids=places).logits[:, 3:]
    torch.testing.assert_close(out, model(ids).logits, rtol=1e-5, atol=1e-5)
