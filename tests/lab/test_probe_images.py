"""`geonorm probe` on a vision transformer of transformers and a folder of images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geonorm.lab import probe_inputs
from geonorm.lab.open import OpenedClassifier
from geonorm.lab.probe_inputs import image_batches, open_probed
from geonorm.lab.runs.folder import read_rows
from geonorm.measure.config import ProbeConfig

transformers = pytest.importorskip("transformers")
Image = pytest.importorskip("PIL.Image")

NAMES = ("blue", "green", "red")


def draw(folder: Path, names: tuple[str, ...], count: int) -> Path:
    random = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("images"), NAMES, 5)


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers' own ViT as it is drawn, in another order of classes, with its processor: ten tokens an image."""
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=12, patch_size=4,
        initializer_range=0.3, id2label=dict(enumerate(("red", "white", "blue", "green"))),
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    about = {"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 12}, "do_resize": True,
             "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_normalize": True, "do_rescale": True}  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def test_a_probe_of_a_vit(call: Any, vit: Path, images: Path, tmp_path: Path) -> None:
    """Its loss is that of the model itself, under the names of its classes."""
    words = ["--data", images, "--gradients", "--ablate-blocks", "--device", "cpu", "--out", tmp_path / "probe"]
    found = call("probe", vit, *words)
    assert found.status == 0, found.err
    sites = list(read_rows(tmp_path / "probe" / "trace.jsonl"))
    assert len(sites) == 4 and all(row["tokens"] == 15 * 10 and row["grad_norm"] > 0 for row in sites)
    model = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    files = [images / name / f"{i}.png" for name in NAMES for i in range(5)]
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    with torch.no_grad():
        logits = model(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1).logits
    wanted = torch.tensor([2] * 5 + [3] * 5 + [0] * 5)
    (summary,) = json.loads((tmp_path / "probe" / "summary.json").read_text())["models"]
    assert summary["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, wanted).item(), rel=1e-5)


def test_a_pass_over_images_is_filled(vit: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_probed(str(vit), ProbeConfig([str(vit)], device="cpu"))
    assert isinstance(opened, OpenedClassifier)

    def sizes(batch: int | None, tokens: int = 150) -> list[int]:
        return [
            len(inputs["pixel_values"]) for inputs in image_batches(opened, str(images), tokens, batch, losses=False)[0]
        ]

    assert sizes(None) == [15] and sizes(4) == [4, 4, 4, 3] and sizes(None, 40) == [4] and sizes(None, 1) == [1]
    monkeypatch.setattr(probe_inputs, "IMAGE_TOKENS", 59)
    assert sizes(None) == [5, 5, 5]


def test_what_is_refused_is_one_line(call: Any, vit: Path, images: Path, tmp_path: Path) -> None:
    others, broken, bare = draw(tmp_path / "others", ("black", "green"), 3), tmp_path / "broken", tmp_path / "bare"
    (broken / "red").mkdir(parents=True)
    (broken / "red" / "a.png").write_bytes(b"nothing")
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((vit / name).read_bytes())
    out = ["--out", tmp_path / "out"]
    for words, said in (
        (["probe", vit, "--data", others, "--gradients", *out], "class 'black' is none of"),
        (["probe", vit, "--data", broken, *out], "cannot read these images (cannot identify image file"),
        (["probe", vit, "--data", tmp_path / "nowhere", *out], "holds no images"),
        (["probe", bare, "--data", images, *out], "no preprocessor_config.json in"),
        (["eval", vit, "--data", images], "is a model of images: this needs a model of the next token"),
        (["generate", vit], "is a model of images: this needs a model of the next token"),
    ):
        found = call(*words)
        assert found.status == 2 and said in found.err and found.err.count("\n") == 1, (words, found.err)
    assert not (tmp_path / "out").exists()


def test_an_encoder_decoder_is_probed_alone(call: Any, tiny_model: Any, tmp_path: Path) -> None:
    tiny_model("t5")[0].save_pretrained(tmp_path / "t5")
    for words in (["eval", tmp_path / "t5", "--data", "stdlib"], ["generate", tmp_path / "t5"]):
        found = call(*words)
        assert found.status == 2 and "is an encoder-decoder: this needs" in found.err and found.err.count("\n") == 1
