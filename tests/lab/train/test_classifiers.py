"""Models of transformers that tell images apart, under `eval` and `probe`: an export is its run, a ViT is itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from geonorm.cli.main import main
from geonorm.lab.data.images import open_images
from geonorm.lab.data.pixels import normalise
from geonorm.lab.open import OpenedImages
from geonorm.lab.runs.run import read_rows
from geonorm.lab.studies import probe_inputs
from geonorm.lab.studies.probe_inputs import images_of, open_probed
from geonorm.probes.config import ProbeConfig

transformers = pytest.importorskip("transformers")

NAMES = ("blue", "green", "red")
SMALL = (
    "--objective classify --preset nano-vit --model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 "
    "--model.image_size 12 --model.classes 7 --evaluation.tokens 64 --evaluation.trace_tokens 0 --runtime.device "
    "cpu --runtime.tensorboard false --batch-size 12"
).split()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise in which one colour is brighter, 12 by 12 pixels."""
    root, random = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for part, count in (("train", 8), ("val", 5)):
        for channel, name in enumerate(reversed(NAMES)):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 128, (12, 12, 3))
                pixels[:, :, channel] += 100
                Image.fromarray(pixels.astype(np.uint8)).save(root / part / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    out = tmp_path_factory.mktemp("classifiers")
    words = ["train", *SMALL, "--steps", "12", "--lr", "0.01", "--data", str(images), "--out", str(out / "run")]
    assert main(words) == 0
    assert main(["export", str(out / "run"), "--to", str(out / "model")]) == 0
    return out / "run"


@pytest.fixture(scope="module")
def export(run: Path) -> Path:
    return run.parent / "model"


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """transformers' own ViT as it is drawn, in another order of classes, with its processor."""
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


def answer(call: Any, *words: Any) -> dict[str, Any]:
    found = call("eval", *words)
    assert found.status == 0 and found.err == "", found.err
    answered: dict[str, Any] = json.loads(found.out)
    return answered


def test_an_export_is_evaluated_as_its_run(call: Any, run: Path, export: Path, images: Path) -> None:
    own, theirs = (answer(call, folder, "--data", images) for folder in (run, export))
    assert theirs["model"] == str(export) and theirs["model_type"] == "geonorm_vision"
    assert theirs["scheme"] == own["scheme"] and theirs["part"] == own["part"] == "held-out" and own["images"] == 15
    assert theirs["loss"] == pytest.approx(own["loss"], rel=1e-5)
    for key in ("accuracy", "top5", "images", "classes", "data_sha256"):
        assert theirs[key] == own[key], key


def test_an_export_knows_the_images_of_its_run(call: Any, images: Path, tmp_path: Path) -> None:
    whole = images / "train"  # without a held-out part of its own
    run, folder = tmp_path / "run", tmp_path / "folder"
    assert call("train", *SMALL, "--data", whole, "--steps", 1, "--out", run).status == 0
    assert call("export", run, "--to", folder).status == 0
    own, theirs = (answer(call, name, "--data", whole) for name in (run, folder))
    assert theirs["part"] == own["part"] == "held-out" and theirs["images"] == own["images"]
    assert answer(call, folder, "--data", images / "val")["part"] == "all"


def test_a_vit_of_transformers_is_asked_under_the_names_of_its_classes(call: Any, vit: Path, images: Path) -> None:
    found = answer(call, vit, "--data", images)
    model = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    held = open_images(str(images)).validation
    with torch.no_grad():
        logits = model(normalise([held.pixels(i) for i in range(len(held))])).logits
    wanted = torch.tensor([{"blue": 2, "green": 3, "red": 0}[NAMES[label]] for label in held.labels])
    assert found["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, wanted).item(), rel=1e-5)
    assert found["accuracy"] == (logits.argmax(-1) == wanted).sum().item() / 15
    assert {row["class"]: row["images"] for row in found["classes"]} == dict.fromkeys(NAMES, 5)
    assert answer(call, vit, "--data", images, "--tokens", 40)["images"] == 4  # ten tokens each


def test_probes_of_a_run_its_export_and_a_vit(
    call: Any, run: Path, export: Path, vit: Path, images: Path, tmp_path: Path
) -> None:
    words = ["--data", images, "--gradients", "--ablate-blocks", "--device", "cpu", "--out", tmp_path / "probe"]
    found = call("probe", run, export, vit, *words)
    assert found.status == 0, found.err
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(tmp_path / "probe" / "trace.jsonl"):
        rows.setdefault(row["model"], []).append(row)
    assert list(rows) == ["run", "model", vit.name] and all(len(sites) == 4 for sites in rows.values())
    for own, theirs in zip(rows["run"], rows["model"], strict=True):
        assert own["tokens"] == theirs["tokens"] == 15 * 10
        for key in ("radius", "angle", "ratio", "grad_norm"):
            assert theirs[key] == pytest.approx(own[key], rel=1e-3), key
    models = json.loads((tmp_path / "probe" / "summary.json").read_text())["models"]
    assert [model["tokens"] for model in models] == [150] * 3
    assert models[1]["loss"] == pytest.approx(models[0]["loss"], rel=1e-4) and models[2]["loss"] > 0
    assert all(row["grad_norm"] > 0 for row in rows[vit.name])


def test_a_pass_over_images_is_filled(run: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_probed(str(run), ProbeConfig([str(run)], device="cpu"))
    assert isinstance(opened, OpenedImages)

    def sizes(batch: int | None) -> list[int]:
        return [len(asked["labels"]) for asked in images_of(opened, str(images), 150, batch)[1]]

    assert sizes(None) == [15] and sizes(4) == [4, 4, 4, 3]
    monkeypatch.setattr(probe_inputs, "IMAGE_TOKENS", 59)  # ten tokens an image
    assert sizes(None) == [5, 5, 5]


def test_what_is_refused_is_one_line(call: Any, export: Path, vit: Path, images: Path, tmp_path: Path) -> None:
    others = tmp_path / "images"
    for name in ("black", "green"):
        (others / name).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(others / name / f"{i}.png")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((vit / name).read_bytes())
    out = ["--out", tmp_path / "out"]
    for words, said in (
        (["eval", vit, "--data", others], "has class 'black', which"),
        (["eval", export, "--data", others], "has class 'black', which"),
        (["eval", bare, "--data", images], "no preprocessor_config.json in"),
        (["eval", export, "--data", images, "--context", 4], "--context is of text"),
        (["eval", export, "--data", "nowhere"], "no images at 'nowhere'"),
        (["generate", export], "so it cannot write text"),
        (["probe", vit, "--data", others, *out], "has class 'black', which"),
        (["probe", vit, "--data", images, "--bos", *out], "--bos is of text"),
        (["probe", vit, "--data", images, "--tokenizer", vit, *out], "it has no tokenizer, leave out --tokenizer"),
    ):
        found = call(*words)
        assert found.status == 2 and said in found.err and found.err.count("\n") == 1, (words, found.err)
    assert not (tmp_path / "out").exists()
