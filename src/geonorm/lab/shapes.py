"""The model of a run: a preset with the given fields replaced, as the objective wants it. No torch here."""

from __future__ import annotations

from dataclasses import asdict, make_dataclass, replace
from typing import Any, Literal

from ..errors import ConfigError
from ..models.config import DecoderConfig, preset
from ..settings import Settings, hints

Goal = Literal["causal", "mlm"]


Model = make_dataclass(
    "Model",
    [(name, hint | None, None) for name, hint in hints(DecoderConfig).items() if name not in ("scheme", "causal")],
    bases=(Settings,),
    namespace={
        "__module__": __name__,
        "__doc__": "Shape of the model; what is not given comes from the preset.",
        "prefix": "model.",
        "documented_by": DecoderConfig,
    },
    frozen=True,
)
"""Every field of a model but the scheme and what the objective says, optional."""


def shape_of(name: str, objective: Goal, scheme: str, model: Any) -> DecoderConfig:
    """The preset of that name under a scheme, with what a `Model` gives. ConfigError for a preset that needs another
    objective."""
    changes = {key: value for key, value in asdict(model).items() if value is not None}
    shape = preset(name, scheme=scheme, **changes)
    if objective == "mlm":
        return replace(shape, causal=False)
    if not shape.causal:
        raise ConfigError(f"preset {name} attends to both sides of a token: it needs --objective mlm")
    return shape
