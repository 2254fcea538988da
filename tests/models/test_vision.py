"""The vision transformer: which pixels a token holds, where it stands, what the head reads, and who may not be one."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from geonorm.errors import ConfigError
from geonorm.models import VisionConfig, VisionTransformer
from geonorm.models.vision import turns_of_places

from ..rows import each

VIT: dict[str, Any] = {"mlp": "gelu", "norm": "layer", "eps": 1e-12, "bias": True, "positions": "learned"}
"""What ViT is under pre(entry=embedding), but for its size."""
TINY: dict[str, Any] = {**VIT, "layers": 2, "width": 16, "heads": 2, "hidden": 24, "image_size": 8, "classes": 5}


def tiny(**changes: Any) -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer(VisionConfig(**{**TINY, **changes})).double()


def pixels(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@each("scheme", ["pre", "geonorm", "ngpt", "mhc"])
@each("changes", [{}, {"pool": "mean", "positions": "rope"}, {"block": "parallel"}])
def test_every_parameter_has_a_gradient_under_any_scheme(scheme: str, changes: dict[str, Any]) -> None:
    model = tiny(scheme=scheme, **changes)
    logits = model(pixels())
    if scheme == "ngpt":
        torch.testing.assert_close(model.patch.weight.norm(dim=0), torch.ones(48).double())
    assert logits.shape == (3, 5)
    targets = torch.tensor([1, -100, 4])
    loss = model.loss(pixels(), targets)
    assert loss.item() == pytest.approx(F.cross_entropy(logits[[0, 2]], targets[[0, 2]]).item())
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_what_the_head_reads() -> None:
    """A patch that no other sees reaches the head through attention alone, or through the mean."""
    for pool in ("token", "mean"):
        model = tiny(scheme="pre", pool=pool)
        for block in model.blocks:
            block.attn.branch.o.weight.data.zero_()
        changed = pixels()
        changed[:, :, :4, :4] += 1
        assert torch.equal(model(pixels()), model(changed)) == (pool == "token")


def test_without_positions_patches_are_a_bag_and_with_them_not() -> None:
    def turned(images: torch.Tensor) -> torch.Tensor:
        """The upper half below the lower one, patch by patch."""
        return torch.cat((images[:, :, 4:], images[:, :, :4]), dim=2)

    for positions, same in (("none", True), ("rope", False), ("learned", False)):
        model = tiny(positions=positions, pool="mean")
        assert torch.allclose(model(pixels()), model(turned(pixels()))) == same, positions


def test_rotary_turns_are_of_rows_and_columns() -> None:
    shape = tiny(positions="rope").config
    cos, sin = turns_of_places(shape, torch.device("cpu"))
    assert cos.shape == sin.shape == (shape.context, shape.rotary_dim // 2) == (5, 4)
    assert (cos[0] == 1).all() and (sin[0] == 0).all()  # the class's own token
    assert torch.allclose(torch.atan2(sin, cos)[:, 0], torch.tensor([0.0, 1, 1, 2, 2]))  # rows
    assert torch.allclose(torch.atan2(sin, cos)[:, 2], torch.tensor([0.0, 1, 2, 1, 2]))  # columns


@each(
    "changes, message",
    [
        ({"causal": True}, "patches of an image have no order"),
        ({"values": "token"}, "needs tokens of a vocabulary"),
        ({"positions": "rope", "width": 12}, "must be a multiple of 4"),
        ({"pool": "max"}, "'max'"),
        ({"image_size": 33}, "must be a multiple of model.patch"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VisionConfig(**{**TINY, **changes})
