"""What a modeling file has in the place of definitions that would bring kernels along, or code from elsewhere."""

from contextlib import nullcontext
from typing import Any

from torch import Tensor

from ..errors import ConfigError, unknown
from ..ops.angle import AngleMap
from ..ops.closed_form import closed_form
from ..ops.reference import reference
from ..schemes.base import Scheme
from ..schemes.registry import REGISTRY

mark_stored = nullcontext
"""Text of a folder is text like any other: this file has all the code that there is."""
allow_within = nullcontext
"""As `mark_stored`."""


def stored(text: str, sources: Any, where: str) -> str:
    """The text itself: this file names no code but its own."""
    return text


def sources_of(scheme: Scheme) -> dict[str, Any]:
    """Nothing new: what config.json holds stays there."""
    return {}


def find(name: str) -> type[Scheme]:
    """The class of a name among those of this file. ConfigError with the nearest one when there is none."""
    if name not in REGISTRY:
        raise ConfigError(unknown("scheme", name, REGISTRY))
    return REGISTRY[name]


def installed() -> dict[str, Any]:
    """None: this file has what it needs."""
    return {}


def geodesic_step(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0) -> Tensor:
    """The update under any angle map, in plain PyTorch; h scales the angle of the step."""
    return closed_form(x, u, angles) if isinstance(h, float) and h == 1.0 else reference(x, u, angles, h)


def fused_write(*arguments: Any) -> None:
    """No kernels: the scheme's own write follows."""
