"""Classification of images from the command line: training, resuming, comparing, what is measured, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import geonorm
from geonorm.errors import CheckpointError, ConfigError, DataError
from geonorm.lab.config import TrainConfig
from geonorm.lab.data.image_batches import validation_images
from geonorm.lab.data.images import open_images
from geonorm.lab.open import OpenedImages, open_run, open_trained
from geonorm.lab.runs.run import read_rows
from geonorm.lab.train.images import check_classes, judge_images, measure_images
from geonorm.nn import VisionTransformer

from ..conftest import summary, without

CPU = torch.device("cpu")
COLOURS = {"blue": 2, "green": 1, "red": 0}
SMALL = (
    "--objective classify --preset nano-vit --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 "
    "--model.image_size 8 --model.classes 7 --evaluation.tokens 64 --evaluation.trace_tokens 10 --runtime.device cpu "
    "--runtime.tensorboard false"
).split()


def write_colours(root: Path, each: int, seed: int = 0) -> Path:
    """Noise in which one colour is brighter, 9 by 8 pixels: the name of the colour is the class."""
    random = np.random.default_rng(seed)
    for name, channel in COLOURS.items():
        (root / name).mkdir(parents=True)
        for i in range(each):
            pixels = random.integers(0, 128, (9, 8, 3))
            pixels[:, :, channel] += 100
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    write_colours(root / "train", 12)
    write_colours(root / "val", 5, seed=1)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> Path:
    """A run of 40 steps."""
    from geonorm.cli.main import main

    out = tmp_path_factory.mktemp("classify") / "run"
    words = ["train", *SMALL, "--data", colours, "--steps", 40, "--lr", 0.01, "--batch-size", 12, "--out", out]
    assert main([str(word) for word in words]) == 0
    return out


@pytest.fixture
def classify(call: Any, colours: Path) -> Any:
    """Trains with SMALL, but for what is given."""

    def train(out: Path, *more: Any) -> Any:
        return call("train", *without([*SMALL, "--data", colours, "--batch-size", 4, "--out", out], more), *more)

    return train


def test_a_run_learns_colours_and_says_how_often_it_is_right(run: Path) -> None:
    found, rows = summary(run), list(read_rows(run / "metrics.jsonl"))
    assert found["val_loss"] < rows[0]["loss"] - 0.5 and found["val_accuracy"] > 0.8 and found["val_bpb"] is None
    assert rows[0]["tokens"] == 12 * 5 and found["val_images"] == 15 and found["val_top5"] >= found["val_accuracy"]
    classes = found["val_classes"]
    assert [row["class"] for row in classes] == list(COLOURS) and all(row["images"] == 5 for row in classes)
    assert sum(row["accuracy"] for row in classes) / 3 == pytest.approx(found["val_accuracy"])
    assert json.loads((run / "classes.json").read_text()) == list(COLOURS) and not (run / "tokenizer.json").exists()
    sites = list(read_rows(run / "trace.jsonl"))
    assert {row["kind"] for row in sites} == {"attn", "mlp"}
    assert all(row[key] is not None for row in sites for key in ("angle_ones", "cos_null", "cos_pair", "ratio"))


def test_measures_by_hand(run: Path, colours: Path) -> None:
    opened, images = open_trained(run), open_images(str(colours))
    assert isinstance(opened, OpenedImages) and isinstance(opened.model, VisionTransformer)
    batches = list(validation_images(images.validation, 4, 8))
    given, labels = (torch.cat(part) for part in zip(*batches, strict=True))
    logits = opened.model(given)
    found = measure_images(opened.model, batches, images.classes, CPU)
    assert found["val_loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    order = logits.argsort(-1, descending=True)
    assert found["val_accuracy"] == (order[:, 0] == labels).double().mean().item()
    assert found["val_top5"] == (order[:, :5] == labels.unsqueeze(1)).any(1).double().mean().item()
    assert found["val_loss"] == pytest.approx(summary(run)["val_loss"], rel=1e-5)
    scores = torch.tensor([[6.0, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1]])
    losses, first, five = judge_images(scores, torch.tensor([0, 0, 4]))
    assert first.tolist() == [True, False, False] and five.tolist() == [True, False, True]
    assert losses.tolist() == pytest.approx(F.cross_entropy(scores, torch.tensor([0, 0, 4]), reduction="none").tolist())
    few = measure_images(lambda_model(scores[:, :3]), [(given[:3], torch.tensor([0, 2, 1]))], ("a", "b", "c"), CPU)
    assert "val_top5" not in few and few["val_accuracy"] == pytest.approx(2 / 3)


def lambda_model(logits: torch.Tensor) -> torch.nn.Module:
    class Fixed(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return logits

    return Fixed()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_ten_steps_equal_five_and_five(classify: Any, losses: Any, after: Any, tmp_path: Path, accumulate: int) -> None:
    options = ["--steps", 10, "--runtime.accumulate", accumulate, "--evaluation.average", 0.3]
    assert classify(tmp_path / "whole", *options).status == 0
    with after(5):
        assert classify(tmp_path / "parts", *options).status == 130
    assert classify(tmp_path / "parts", *options).status == 0
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    weights = [(tmp_path / part / "checkpoints/step-10/model.safetensors").read_bytes() for part in ("whole", "parts")]
    assert weights[0] == weights[1]
    assert summary(tmp_path / "whole")["val_accuracy_average"] is not None


@pytest.mark.parametrize("scheme", ["pre", "deepnorm", "ngpt", "mhc", "attnres", "residual_dual"])
def test_schemes_of_every_kind_train(scheme: str, classify: Any, tmp_path: Path) -> None:
    done = classify(tmp_path / "run", "--steps", 1, "--scheme", scheme, "--model.layers", 2)
    assert done.status == 0, done.err
    assert summary(tmp_path / "run")["val_loss"] > 0


def test_the_stream_of_any_preset_and_other_settings(classify: Any, call: Any, colours: Path, tmp_path: Path) -> None:
    words = [word if word != "nano-vit" else "nano" for word in SMALL]
    rest = [
        "--model.pool",
        "mean",
        "--images.pad",
        0,
        "--images.flip",
        "false",
        "--steps",
        2,
        "--out",
        tmp_path / "run",
    ]
    assert call("train", *words, "--data", colours, *rest).status == 0
    opened = open_trained(tmp_path / "run")
    assert (opened.config.images.pad, opened.model.config.pool, opened.model.config.positions) == (0, "mean", "rope")
    assert TrainConfig().objective == "causal"


def test_a_comparison_and_its_report(call: Any, colours: Path, tmp_path: Path) -> None:
    out = tmp_path / "both"
    shared = ["--schemes", "pre", "geonorm", "--steps", 2, "--seeds", 1, "--jobs", 1, "--evaluation.whole", "true"]
    assert call("compare", *SMALL, "--data", colours, *shared, "--out", out).status == 0
    results = json.loads((out / "results.json").read_text())
    assert all(0 <= row["val_accuracy_mean"] <= row["val_top5_mean"] <= 1 for row in results["schemes"])
    page = (out / "report.html").read_text()
    assert all(said in page for said in ("Accuracy by class", ">green</t", "losses of images", "nats per image"))
    assert "masked tokens" not in page


def test_eval(run: Path, call: Any, colours: Path, tmp_path: Path) -> None:
    done = call("eval", run, "--data", colours, "--out", tmp_path / "eval")
    assert done.status == 0, done.err
    found, ended = json.loads(done.out), summary(run)
    assert (found["part"], found["images"], found["accuracy"]) == ("held-out", 15, ended["val_accuracy"])
    assert found["top5"] == ended["val_top5"] and found["classes"] == ended["val_classes"]
    other = write_colours(tmp_path / "other", 3, seed=9)
    found = json.loads(call("eval", run, "--data", other).out)
    assert (found["part"], found["images"]) == ("all", 9)
    assert json.loads(call("eval", run, "--data", colours, "--tokens", 20).out)["images"] == 4
    (other / "red").rename(other / "rose")
    refused = call("eval", run, "--data", other)
    assert refused.status == 2 and "was trained on blue, green, red: give images of the same classes" in refused.err
    refused = call("eval", run, "--data", colours, "--context", 8)
    assert refused.status == 2 and "--context is of text" in refused.err
    with pytest.raises(CheckpointError, match="damaged"):
        check_classes(tmp_path, open_images(str(colours)))


def test_probe(run: Path, call: Any, colours: Path, text: Path, tmp_path: Path) -> None:
    words = ["--gradients", "--ablate-blocks", "--tokens", 75]
    done = call("probe", run, "--data", colours, *words, "--out", tmp_path / "probe")
    assert done.status == 0, done.err
    (one,) = json.loads((tmp_path / "probe/summary.json").read_text())["models"]
    assert one["tokens"] == 75 and one["loss"] == pytest.approx(summary(run)["val_loss"], rel=1e-5)
    sites = list(read_rows(tmp_path / "probe/trace.jsonl"))
    assert all(row["grad_norm"] > 0 and row["cos_pair"] is not None and row["tokens"] == 75 for row in sites)
    assert [row["blocks"] for row in read_rows(tmp_path / "probe/ablation.jsonl")] == [1]
    found = geonorm.probe(str(run), str(colours), tokens=75, ablate_blocks=True)
    assert found.loss == pytest.approx(one["loss"]) and found.tokens == 75
    model = open_trained(run).model
    ((images, labels), *_) = validation_images(open_images(str(colours)).validation, 15, 8)
    given = geonorm.probe(model, {"": images, "labels": labels}, ablate_blocks=True)
    assert given.loss == pytest.approx(one["loss"], rel=1e-5)
    with pytest.raises(ConfigError, match="needs what is to be predicted"):
        geonorm.probe(model, images, gradients=True)
    with pytest.raises(ConfigError, match="--bos is of text"):
        geonorm.probe(str(run), str(colours), bos=True)


def test_what_needs_text_refuses_a_run_on_images(run: Path, call: Any, tmp_path: Path) -> None:
    refused = call("generate", run)
    assert refused.status == 2 and "tells classes of images apart, so it cannot write text" in refused.err
    refused = call("eval", run, "--tasks", "copa")
    assert refused.status == 2 and refused.err.count("\n") == 1
    with pytest.raises(ConfigError, match="this needs a model of text"):
        open_run(run)


REFUSED = {
    "text": (["--data", "TEXT"], "neither .npz nor .bin: give one of these, or a folder of classes"),
    "the built-in text": (["--data", "stdlib"], "no images at 'stdlib'"),
    "too many classes": (["--model.classes", 2], "has 3 classes, model.classes is 2: --model.classes 3"),
    "a large batch": (["--batch-size", 99], "36 images do not fill a batch of 99"),
    "tasks": (["--evaluation.tasks", "x"], "evaluation.tasks need a model of the next token"),
    "a tokenizer": (["--tokens.tokenizer", "byte"], "leave them out with --objective classify"),
    "a vocabulary": (["--model.vocab_size", 300], "unknown field of model 'vocab_size'"),
    "grey": (["--model.channels", 1], "images are read in three colours"),
    "patches that do not fit": (["--model.patch", 3], "must be a multiple of model.patch 3"),
    "changes of text": (["--objective", "causal", "--preset", "nano", "--images.pad", 1], "leave them out"),
    "another preset": (["--objective", "causal"], "preset nano-vit reads images: it needs --objective classify"),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=list(REFUSED))
def test_what_is_refused_writes_nothing(
    classify: Any, text: Path, tmp_path: Path, words: tuple[list[Any], str]
) -> None:
    given = [text if word == "TEXT" else word for word in words[0]]
    found = classify(tmp_path / "run", "--steps", 2, *given)
    assert found.status == 2 and words[1] in found.err and found.err.count("\n") == 1, found.err
    assert not (tmp_path / "run").exists()


def test_a_plan_of_images(classify: Any, tmp_path: Path) -> None:
    """It needs none of them; tokens are patches and the one in front."""
    found = classify(tmp_path / "run", "--steps", 2, "--data", "nowhere", "--dry-run")
    assert found.status == 0 and "7 classes" in found.out and not (tmp_path / "run").exists(), found.err
    assert "images of 8 pixels in patches of 4" in found.out


def test_a_damaged_image_is_named_when_it_is_met(call: Any, tmp_path: Path) -> None:
    root = write_colours(tmp_path / "images" / "train", 3)
    write_colours(tmp_path / "images" / "val", 2)
    (root / "green" / "1.png").write_bytes((root / "green" / "1.png").read_bytes()[:60])
    found = call("train", *SMALL, "--data", root.parent, "--batch-size", 9, "--steps", 2, "--out", tmp_path / "run")
    assert found.status == 2 and "green/1.png: cannot be decoded" in found.err and found.err.count("\n") == 1
    (root / "blue" / "0.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"blue/0\.png"):
        open_images(str(root.parent)).train.pixels(0)
