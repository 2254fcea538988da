"""Images: what is read from which files, what is held out, how they are changed, and what damage is called."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from geonorm.errors import DataError
from geonorm.lab.data.image_batches import ImageBatches, validation_images
from geonorm.lab.data.images import RECORD, open_images
from geonorm.lab.data.pixels import change, change_bits, crop, decode_file, normalise

Pixels = NDArray[np.uint8]


def picture(seed: int, height: int = 8, width: int = 8) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(pixels: Pixels, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def write_folder(root: Path, classes: Sequence[str], each: int, first: int = 0) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(each):
            (root / name / f"{i}.png").write_bytes(encoded(picture(first + 100 * number + i)))
    return root


def write_npz(path: Path, labels: Sequence[int], classes: Sequence[str] = ("cat", "dog"), first: int = 0) -> Path:
    files = [encoded(picture(first + i), "JPEG") for i in range(len(labels))]
    offsets = np.cumsum([0, *map(len, files)])
    data = np.frombuffer(b"".join(files), np.uint8)
    np.savez(path, data=data, offsets=offsets, labels=np.array(labels, np.uint8), classes=np.array(classes))
    return path


def write_cifar(path: Path, labels: Sequence[int], first: int = 0) -> Path:
    planes = [picture(first + i, 32, 32).transpose(2, 0, 1).tobytes() for i in range(len(labels))]
    path.write_bytes(b"".join(bytes([label]) + part for label, part in zip(labels, planes, strict=True)))
    return path


def test_a_folder_of_classes(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", ["dog", "cat"], 20)
    (root / "cat" / "notes.txt").write_text("no image")
    found = open_images(str(root), held_out=0.3)
    assert found.classes == ("cat", "dog") and found.name == "pets"
    assert len(found.train) + len(found.validation) == 40 and 1 <= len(found.validation) < 30
    seen = {part.called(i): (int(part.labels[i]), part.pixels(i)) for part in (found.train, found.validation)
            for i in range(len(part))}  # fmt: skip
    assert len(seen) == 40
    label, pixels = seen[str(root / "dog" / "3.png")]
    assert label == 1 and np.array_equal(pixels, picture(3))
    again = open_images(str(root), held_out=0.3)
    assert again.sha256 == found.sha256 and np.array_equal(again.validation.labels, found.validation.labels)
    assert open_images(str(root)).sha256 != found.sha256  # another share is another split
    (root / "dog" / "3.png").write_bytes(encoded(picture(999)))
    assert open_images(str(root), held_out=0.3).sha256 != found.sha256


@pytest.mark.parametrize(
    "names", ["train val", "train test", "train validation", "training valid", "Train dev", "train val test"]
)
def test_a_folder_with_a_part_of_its_own_to_validate_on(tmp_path: Path, names: str) -> None:
    train, held_out, *others = names.split()
    write_folder(tmp_path / train, ["a", "b", "c"], 2)
    write_folder(tmp_path / held_out, ["c", "a"], 3, first=50)
    for other in others:
        write_folder(tmp_path / other, ["b"], 1, first=90)
    found = open_images(str(tmp_path))
    assert len(found.train) == 6 and found.validation.labels.tolist() == [0, 0, 0, 2, 2, 2]
    assert np.array_equal(found.validation.pixels(0), picture(150))


def test_hidden_folders_of_a_class_are_left_out(tmp_path: Path) -> None:
    """Small copies in .thumbnails would train on what is held out."""
    root, disk = write_folder(tmp_path / "pets", ["cat", "dog"], 3), write_folder(tmp_path / "disk", ["more"], 2, 50)
    plain = open_images(str(root)).sha256
    write_folder(root / "cat", [".thumbnails"], 3, first=900)
    assert open_images(str(root)).sha256 == plain
    (root / "dog" / "others").symlink_to(disk)
    found = open_images(str(root))
    assert len(found.train) + len(found.validation) == 8


def test_images_are_not_validated_on_themselves(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_folder(tmp_path / name, ["a", "b"], 2)
    with pytest.raises(DataError, match="its validation images are its training images: give others"):
        open_images(str(tmp_path))


@pytest.mark.parametrize("names", ["training", "valid cat", "val test", "train cat"])
def test_a_part_of_the_data_is_no_class(tmp_path: Path, names: str) -> None:
    for name in names.split():
        write_folder(tmp_path / name, ["a", "b"], 2)
    with pytest.raises(DataError, match=rf"{names.split()[0]} is named like a part of the data, not like a class: put"):
        open_images(str(tmp_path))


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    """As one of CIFAR-100's is."""
    assert open_images(str(write_folder(tmp_path, ["bus", "train"], 3))).classes == ("bus", "train")


def test_npz_of_jpeg_files(tmp_path: Path) -> None:
    write_npz(tmp_path / "x_train.npz", [0, 1, 1])
    write_npz(tmp_path / "x_test.npz", [1, 0], first=10)
    found = open_images(str(tmp_path))
    assert found.classes == ("cat", "dog") and found.train.labels.tolist() == [0, 1, 1]
    assert found.validation.labels.tolist() == [1, 0]
    wanted = np.asarray(Image.open(io.BytesIO(encoded(picture(11), "JPEG"))))
    assert np.array_equal(found.validation.pixels(1), wanted)
    one = open_images(str(tmp_path / "x_train.npz"))
    assert (len(one.train), len(one.validation)) == (2, 1) and one.sha256 != found.sha256


def test_the_binary_files_of_cifar(tmp_path: Path) -> None:
    write_cifar(tmp_path / "data_batch_1.bin", [3, 9])
    write_cifar(tmp_path / "data_batch_2.bin", [0], first=2)
    write_cifar(tmp_path / "test_batch.bin", [5, 5, 1], first=3)
    found = open_images(str(tmp_path))
    assert found.train.labels.tolist() == [3, 9, 0] and found.validation.labels.tolist() == [5, 5, 1]
    assert found.classes[3] == "cat" and len(found.classes) == 10
    assert np.array_equal(found.train.pixels(2), picture(2, 32, 32))
    assert found.train.called(2).endswith("data_batch_2.bin, image 0")
    one = open_images(str(tmp_path / "test_batch.bin"))
    assert len(one.train) + len(one.validation) == 3


def test_a_place_in_the_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "pets", ["a", "b"], 2)
    monkeypatch.setenv("GEONORM_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    assert open_images("pets").sha256 == open_images(str(tmp_path / "pets")).sha256


def test_damaged_images_are_named_in_one_line(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "pets", ["a", "b"], 3)
    whole = (root / "b" / "1.png").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no image at all"):
        (root / "b" / "1.png").write_bytes(content)
        found = open_images(str(root))
        parts = [(part, i) for part in (found.train, found.validation) for i in range(len(part))]
        ((part, number),) = [(part, i) for part, i in parts if part.called(i).endswith("b/1.png")]
        with pytest.raises(DataError, match=r"b/1\.png: cannot be decoded \(.+\): replace or remove it") as error:
            part.pixels(number)
        assert "\n" not in str(error.value)
    archive = write_npz(tmp_path / "x.npz", [0] * 5 + [1] * 5)
    with np.load(archive) as saved:
        fields = dict(saved)
    fields["data"] = fields["data"].copy()
    fields["data"][fields["offsets"][4] : fields["offsets"][5]] = 7
    np.savez(archive, **fields)
    found = open_images(str(archive))
    parts = [(part, i) for part in (found.train, found.validation) for i in range(len(part))]
    ((part, number),) = [(part, i) for part, i in parts if part.called(i).endswith("image 4")]
    with pytest.raises(DataError, match=r"x\.npz, image 4: cannot be decoded \(not an image\)"):
        part.pixels(number)
    (root / "b" / "1.png").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offsets": np.array([0, 5])}, "offsets do not fit the data: 2 labels"),
        ({"offsets": np.array([0, 9, 5])}, "offsets do not fit"),
        ({"offsets": np.array([0, 5, 10**9])}, "offsets do not fit"),
        ({"labels": np.array([0, 7])}, "labels up to 7, but 2 classes"),
        ({"labels": np.array([0.5, 1.0])}, "whole numbers"),
        ({"data": np.array(["a"])}, "data must be bytes"),
        ({"data": np.array([{}], dtype=object)}, "not a readable .npz file"),
        ({"classes": np.array(["crane", "dog", "crane"])}, "class 'crane' stands twice"),
        ({"classes": np.array("cat")}, "a row of texts"),
        ({"classes": np.array([b"cat", b"dog"])}, "a row of texts"),
    ],
)
def test_damaged_archives(tmp_path: Path, change: dict[str, NDArray[np.generic]], message: str) -> None:
    path = write_npz(tmp_path / "x.npz", [0, 1])
    with np.load(path) as saved:
        fields = dict(saved)
    np.savez(path, **{**fields, **change})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message) as error:
        open_images(str(path))
    assert "x.npz" in str(error.value)


def test_what_is_no_source_of_images(tmp_path: Path) -> None:
    def refuse(path: Path, message: str) -> None:
        with pytest.raises(DataError, match=message) as error:
            open_images(str(path))
        assert "\n" not in str(error.value)

    refuse(tmp_path / "nowhere", "no images at '.*nowhere'")
    refuse(tmp_path, "0 folders with images")
    (tmp_path / "x.npz").write_bytes(b"PK no archive")
    refuse(tmp_path / "x.npz", "x.npz: not a readable .npz file")
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    refuse(tmp_path / "x.npz", "x.npz: not a readable .npz file")
    np.savez_compressed(tmp_path / "x.npz", data=np.arange(9999, dtype=np.uint8))
    content = bytearray((tmp_path / "x.npz").read_bytes())
    content[60:99] = bytes(39)
    (tmp_path / "x.npz").write_bytes(content)
    refuse(tmp_path / "x.npz", "x.npz: not a readable .npz file")
    np.savez(tmp_path / "y.npz", data=np.zeros(3, np.uint8))
    refuse(tmp_path / "y.npz", "data, offsets and labels are needed")
    refuse(tmp_path, "which of x.npz, y.npz are for training is not clear")
    (tmp_path / "z.bin").write_bytes(b"x" * (RECORD + 1))
    refuse(tmp_path / "z.bin", "no whole number of CIFAR-10's records")
    (tmp_path / "z.bin").write_bytes(b"\x0b" + b"x" * (RECORD - 1))
    refuse(tmp_path / "z.bin", "z.bin, image 0: label 11")
    (tmp_path / "text.txt").write_text("text")
    refuse(tmp_path / "text.txt", "neither .npz nor .bin")
    write_folder(tmp_path / "one", ["a"], 3)
    refuse(tmp_path / "one", "1 folders with images")
    write_folder(tmp_path / "two" / "train", ["a", "b"], 1)
    write_folder(tmp_path / "two" / "test", ["a", "c"], 1)
    refuse(tmp_path / "two", "class 'c' is held out but has no images")
    write_folder(tmp_path / "same", ["a", "b"], 1)
    (tmp_path / "same/b/0.png").write_bytes((tmp_path / "same/a/0.png").read_bytes())
    refuse(tmp_path / "same", "too few different images")


def test_without_pillow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match=r"cat.png: reading images needs PIL: pip install 'geonorm\[train\]'"):
        decode_file(b"", "cat.png")


def test_other_formats_and_sizes() -> None:
    grey = Image.fromarray(picture(0)[:, :, 0])
    clear = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    for image in (grey, clear, clear.convert("P")):
        out = io.BytesIO()
        image.save(out, "PNG")
        assert decode_file(out.getvalue(), "x").shape[2] == 3
    levels = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    out = io.BytesIO()
    Image.fromarray(levels).save(out, "PNG")  # grey of 16 bits keeps its levels
    assert np.array_equal(decode_file(out.getvalue(), "x")[:, :, 1].ravel(), np.arange(16) * 17)
    out = io.BytesIO()
    Image.fromarray(levels.astype(np.float32) / 65535).save(out, "TIFF")
    with pytest.raises(DataError, match="x: pixels of mode F have no largest value: convert it to 8 bits"):
        decode_file(out.getvalue(), "x")
    wide = np.zeros((4, 20, 3), np.uint8)
    wide[:, 7:13] = 200  # the square in the middle and a pixel on either side, which scaling looks at
    assert (crop(wide, 8, "x") == 200).all() and crop(wide, 8, "x").shape == (8, 8, 3)
    with pytest.raises(DataError, match="x: 201 by 2 pixels are too narrow"):
        crop(np.zeros((2, 201, 3), np.uint8), 8, "x")
    assert crop(picture(1), 8, "x").shape == (8, 8, 3) and np.array_equal(crop(picture(1), 8, "x"), picture(1))


def test_changes_by_hand() -> None:
    pixels = picture(5)
    moved = change(
        pixels, 1, True, np.array([0, 5, 0], np.uint64)
    )  # 0 of 0, 1, 2: a row down; 5 mod 3: one to the left
    assert (moved[0] == 0).all() and (moved[:, -1] == 0).all() and np.array_equal(moved[1:, :-1], pixels[:-1, 1:])
    assert np.array_equal(change(pixels, 1, True, np.array([1, 1, 0], np.uint64)), pixels)
    assert np.array_equal(change(pixels, 0, True, np.array([9, 9, 1], np.uint64)), pixels[:, ::-1])
    assert np.array_equal(change(pixels, 0, False, np.array([9, 9, 1], np.uint64)), pixels)
    white = normalise([np.full((2, 2, 3), 255, np.uint8), np.zeros((2, 2, 3), np.uint8)])
    assert white.shape == (2, 3, 2, 2) and white[0].eq(1).all() and white[1].eq(-1).all()
    draws = np.array([change_bits(0, i) for i in range(400)])
    rows, mirrors = np.bincount((draws[:, 0] % np.uint64(9)).astype(int), minlength=9), draws[:, 2] & np.uint64(1)
    assert (rows > 20).all() and 160 < mirrors.sum() < 240
    assert not (change_bits(0, 1) == change_bits(1, 1)).any()


def test_batches_are_a_function_of_seed_and_step(tmp_path: Path) -> None:
    found = open_images(str(write_folder(tmp_path / "pets", ["a", "b"], 7)), held_out=0.2)
    batches = ImageBatches(found.train, 4, 8, 2, True, seed=3)
    images, labels = batches.at(5)
    assert images.shape == (4, 3, 8, 8) and images.dtype == torch.float32 and labels.dtype == torch.int64
    fresh = ImageBatches(found.train, 4, 8, 2, True, seed=3)
    for rows in (slice(0, 2), slice(2, 4)):  # of two ranks, in a process that saw no step before
        part = fresh.at(5, rows)
        assert torch.equal(part[0], images[rows]) and torch.equal(part[1], labels[rows])
    other = ImageBatches(found.train, 4, 8, 2, True, seed=4).at(5)
    assert not torch.equal(other[0], images)
    count = len(found.train)
    plain = ImageBatches(found.train, count, 8, 0, False, seed=0)
    whole = [{tuple(image.flatten().tolist()) for image in plain.at(step)[0]} for step in (0, 1)]
    assert len(whole[0]) == count and whole[0] == whole[1]  # each once an epoch
    assert not torch.equal(plain.at(0)[0], plain.at(1)[0])  # in another order
    with pytest.raises(DataError, match=f"{count} images do not fill a batch of 99"):
        ImageBatches(found.train, 99, 8, 0, True, seed=0)


def test_validation_images_are_fixed_and_spread(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", ["a", "b"], 1)
    write_folder(tmp_path / "val", ["a", "b"], 5, first=20)
    images = open_images(str(tmp_path)).validation
    found = list(validation_images(images, 4, 8))
    assert [len(labels) for _, labels in found] == [4, 4, 2]
    assert torch.cat([labels for _, labels in found]).tolist() == [0] * 5 + [1] * 5
    assert torch.equal(found[0][0][1], normalise([picture(21)])[0])
    (few,) = validation_images(images, 4, 8, most=2)
    assert few[1].tolist() == [0, 1]
