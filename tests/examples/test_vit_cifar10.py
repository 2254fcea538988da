"""The vision transformer on images, in plain PyTorch: it runs from its file, and learns colours."""

import io
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image")

SCRIPT = Path(__file__).parents[2] / "examples" / "vit_cifar10.py"
COLOURS = ("red", "green", "blue")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Noise of 8 by 8 pixels in which one colour is brighter, in the files of CIFAR-10."""
    random = np.random.default_rng(0)
    for part, count in (("train", 48), ("test", 12)):
        labels, files = np.arange(count) % 3, list[bytes]()
        for label in labels:
            pixels = random.integers(0, 64, (8, 8, 3), dtype=np.uint8)
            pixels[:, :, label] += 150
            Image.fromarray(pixels).save(buffer := io.BytesIO(), "JPEG", quality=95)
            files.append(buffer.getvalue())
        offsets = np.cumsum([0, *map(len, files)])
        joined = np.frombuffer(b"".join(files), np.uint8)
        np.savez(tmp_path / f"cifar10_{part}_jpeg.npz", data=joined, offsets=offsets, labels=labels.astype(np.uint8),
                 classes=np.array(COLOURS))  # fmt: skip
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, data: Path, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--data", str(data), "--layers", "2", "--batch-size", "16", *words])
    runpy.run_path(str(SCRIPT), run_name="__main__")


@pytest.mark.parametrize("scheme", ["geonorm", "ngpt"])
def test_it_runs(scheme: str, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, data, "--scheme", scheme, "--steps", "3")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{scheme}: ") and "48 images" in lines[0]
    assert lines[1].startswith("step 3/3  loss ") and lines[2].startswith("test loss ")


def test_it_learns_colours(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, data, "--steps", "40")
    accuracy = re.search(r"accuracy ([\d.]+)%", capsys.readouterr().out)
    assert accuracy is not None and float(accuracy[1]) > 90
