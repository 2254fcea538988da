"""The vision transformer in transformers: its model's own function, its folder, its pipeline, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from geonorm.cli.main import main
from geonorm.errors import ConfigError
from geonorm.lab.data.pixels import crop, normalise
from geonorm.lab.open import open_trained
from geonorm.nn import VisionTransformer, vision_preset

transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402

LAYOUTS: dict[str, dict[str, Any]] = {
    "ViT": {},
    "rotary, mean": {"pool": "mean", "positions": "rope", "bias": False, "mlp": "swiglu"},
    "parallel": {"block": "parallel", "values": "first"},
}


def build(scheme: str, **changes: Any) -> VisionTransformer:
    torch.manual_seed(0)
    size = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "image_size": 8, "classes": 5}
    model = VisionTransformer(vision_preset("nano-vit", scheme=scheme, **size, **changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                parameter += 0.1 * torch.rand(parameter.shape)
    return model


def pixels() -> torch.Tensor:
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheme", ["geonorm", "pre(entry=embedding)", "hyper", "ngpt"])
def test_it_is_its_model_and_survives_saving(scheme: str, layout: str, tmp_path: Path) -> None:
    own = build(scheme, **LAYOUTS[layout])
    model, labels = hf.adapt_vision(own), torch.tensor([0, 4, 2])
    assert model.head.weight.data_ptr() == own.head.weight.data_ptr()
    out = model(pixel_values=pixels(), labels=labels, output_hidden_states=True)
    torch.testing.assert_close(out.logits, own(pixels()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.loss, own.loss(pixels(), labels), rtol=1e-5, atol=1e-6)
    assert len(out.hidden_states) == 3 and out.hidden_states[0].shape == (3, own.config.context, 16)
    model.save_pretrained(tmp_path)
    again, info = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and type(again) is hf.GeoNormForImageClassification
    assert torch.equal(model(pixels()).logits, again(pixels()).logits) and again.config.shape() == own.config
    eager = transformers.AutoModelForImageClassification.from_pretrained(tmp_path, attn_implementation="eager")
    found = eager(pixels(), output_attentions=True)
    torch.testing.assert_close(found.logits, out.logits, rtol=1e-4, atol=1e-5)
    assert found.attentions[1].shape == (3, 2, own.config.context, own.config.context)
    body = transformers.AutoModel.from_pretrained(tmp_path)
    assert body(pixels()).last_hidden_state.shape == (3, own.config.context, 16)


def test_it_trains_with_checkpointing_and_keeps_constraints() -> None:
    losses = []
    for checkpointing in (False, True):
        model = hf.adapt_vision(build("ngpt")).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            loss = model(pixels(), labels=torch.tensor([0, 4, 2])).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.constrain()
        losses.append(loss.item())
        lengths = model.model.patch.weight.norm(dim=0)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_weights_that_no_file_held_are_drawn_as_the_model_draws() -> None:
    torch.manual_seed(0)
    config = hf.GeoNormVisionConfig.of(vision_preset("nano-vit", scheme="geonorm"))
    model = hf.GeoNormForImageClassification(config)
    weights = {role: weight for _, role, weight in model.constrained()}
    assert weights["patch"].std().item() == pytest.approx(48**-0.5, rel=0.1)
    assert weights["position"].std().item() == pytest.approx(128**-0.5, rel=0.1)
    assert set(weights) == {"patch", "class_token", "position", "q", "k", "v", "o", "up", "down", "head"}
    assert not model.head.bias.any() and not model.model.patch.bias.any()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on noise of two classes."""
    root = tmp_path_factory.mktemp("vision")
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (root / "images" / name).mkdir(parents=True)
        for i in range(20):
            Image.fromarray(random.integers(0, 256, (12, 8, 3), dtype=np.uint8)).save(root / f"images/{name}/{i}.png")
    small = "--model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.image_size 8 --model.classes 3"
    words = f"train --objective classify --preset nano-vit {small} --steps 2 --runtime.tensorboard false".split()
    assert main([*words, "--data", str(root / "images"), "--out", str(root / "run")]) == 0
    return root / "run"


def test_export_and_its_pipeline(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    assert "AutoModelForImageClassification" in capsys.readouterr().out
    folder = tmp_path / "model"
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "geonorm_vision" and list(config["id2label"].values()) == ["cat", "dog", "class 2"]
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card and "bits per byte" not in card and "vocabulary" not in card
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 14, 3), dtype=np.uint8))
    own = open_trained(run).model
    tell = transformers.pipeline("image-classification", str(folder))
    assert {row["label"] for row in tell(image)} == {"cat", "dog", "class 2"}
    same = Image.fromarray(np.random.default_rng(4).integers(0, 256, (8, 8, 3), dtype=np.uint8))
    given = tell.image_processor(same, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(given, normalise([np.asarray(same)]))
    torch.testing.assert_close(tell.model(given).logits, own(given), rtol=1e-5, atol=1e-5)
    scaled = tell.image_processor(image, return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(scaled, normalise([crop(np.asarray(image), 8, "x")]))


def test_what_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["--remote-code"], "--remote-code is for models of text"),
        (["--layout", "stock"], "--layout stock is for models of text"),
    ):
        assert main(["export", str(run), "--to", str(tmp_path / "x"), *words]) == 2
        assert message in capsys.readouterr().err and not (tmp_path / "x").exists()
    for fields, message in (
        ({"patch_sise": 4}, "unknown key of GeoNormVisionConfig 'patch_sise': did you mean 'patch_size'"),
        ({"scheme": "prä"}, "unknown scheme"),
        ({"image_size": 30}, "must be a multiple of model.patch 4"),
    ):
        with pytest.raises(ConfigError, match=message):
            hf.GeoNormVisionConfig(**fields)
    with pytest.raises(ValueError, match="give pixel_values"):
        hf.adapt_vision(build("pre"))()
