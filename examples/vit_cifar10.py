"""Train a vision transformer under a residual scheme on CIFAR-10, in plain PyTorch.

    python examples/vit_cifar10.py --data FOLDER --scheme geonorm --steps 800

FOLDER holds cifar10_train_jpeg.npz and cifar10_test_jpeg.npz, each with `data` (uint8: JPEG files one behind the
other), `offsets` (where each begins, and the end of the last), `labels` and `classes`. Needs Pillow.
"""

import argparse
import io
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import geonorm
from geonorm.models import VisionConfig, VisionTransformer
from geonorm.schemes import advance

PADDING = 4
"""Pixels of black around a training image, from which a part of the old size is cut."""


def read_images(path: Path) -> tuple[Tensor, Tensor, list[str]]:
    """All images of a file, uint8 (images, 3, height, width), their labels (images,), and the names of the classes."""
    with np.load(path) as archive:
        data, offsets = archive["data"], archive["offsets"]
        labels, classes = archive["labels"].astype(np.int64), archive["classes"].tolist()
    files = (data[first:last].tobytes() for first, last in pairwise(offsets))
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels), classes


def to_floats(pixels: Tensor) -> Tensor:
    """0 to 255 becomes -1 to 1."""
    return pixels.float() / 127.5 - 1


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Random crops of the padded images, each second one mirrored by chance."""
    size = pixels.shape[-1]
    padded = torch.nn.functional.pad(pixels, [PADDING] * 4)
    corners = torch.randint(2 * PADDING + 1, (len(pixels), 2), generator=generator).tolist()
    mirrored = torch.randint(2, (len(pixels),), generator=generator).tolist()
    parts = []
    for image, (top, left), mirror in zip(padded, corners, mirrored, strict=True):
        part = image[:, top : top + size, left : left + size]
        parts.append(part.flip(-1) if mirror else part)
    return torch.stack(parts)


def learning_rate(step: int, steps: int, highest: float) -> float:
    """10 % warm-up, then a cosine to a tenth."""
    warmup = max(1, steps // 10)
    if step <= warmup:
        return highest * step / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return highest * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)


@torch.no_grad()
def evaluate(model: VisionTransformer, pixels: Tensor, labels: Tensor, device: torch.device) -> tuple[float, float]:
    """Mean loss in nats per image, and the share of images whose class is the likeliest."""
    model.eval()
    loss, hits = 0.0, 0
    for images, targets in zip(pixels.split(256), labels.split(256), strict=True):
        targets = targets.to(device)
        logits = model(to_floats(images.to(device)))
        loss += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
        hits += int((logits.argmax(-1) == targets).sum())
    model.train()
    return loss / len(labels), hits / len(labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--scheme", default="geonorm", help="as in `geonorm schemes`")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pixels, labels, classes = read_images(options.data / "cifar10_train_jpeg.npz")
    test_pixels, test_labels, _ = read_images(options.data / "cifar10_test_jpeg.npz")
    torch.manual_seed(options.seed)
    shape = VisionConfig(
        scheme=options.scheme, layers=options.layers, width=128, heads=4, hidden=512, image_size=pixels.shape[-1],
        patch=4, classes=len(classes), mlp="gelu", norm="layer", bias=True, positions="learned",
    )  # fmt: skip
    model = VisionTransformer(shape).to(device)
    optimizer = torch.optim.AdamW(geonorm.parameter_groups(model, options.lr, weight_decay=0.05), betas=(0.9, 0.95))
    print(f"{options.scheme}: {model.parameter_count():,} parameters, {len(labels):,} images, {device}")

    generator = torch.Generator().manual_seed(options.seed)
    for step in range(1, options.steps + 1):
        rows = torch.randint(len(labels), (options.batch_size,), generator=generator)
        images = to_floats(augment(pixels[rows], generator)).to(device)
        loss = model.loss(images, labels[rows].to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options.steps, options.lr) * group["lr_multiplier"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        model.constrain()  # nGPT and others keep weights on a sphere
        advance(model)  # some schemes change over training
        if step % 50 == 0 or step == options.steps:
            print(f"step {step}/{options.steps}  loss {loss.item():.4f}")
    test_loss, accuracy = evaluate(model, test_pixels, test_labels, device)
    print(f"test loss {test_loss:.4f}  accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
