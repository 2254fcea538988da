"""The model of a run: a preset with the given fields replaced, as the objective wants it. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, make_dataclass, replace
from typing import Any, Literal

from ..errors import ConfigError
from ..nn.config import DecoderConfig, ModelConfig, VisionConfig, preset, vision_preset
from ..settings import Settings, hints

Goal = Literal["causal", "mlm", "classify"]


@dataclass(frozen=True)
class EveryField(DecoderConfig, VisionConfig):
    """What any kind of model has: names, types and documentation, never a model."""


Model = make_dataclass(
    "Model",
    [(name, hint | None, None) for name, hint in hints(EveryField).items() if name not in ("scheme", "causal")],
    bases=(Settings,),
    namespace={
        "__module__": __name__,
        "__doc__": "Shape of the model; what is not given comes from the preset.",
        "prefix": "model.",
        "documented_by": EveryField,
    },
    frozen=True,
)
"""Every field of every model but the scheme and what the objective says, optional: what is not given comes from the
preset."""


def shape_of(name: str, objective: Goal, scheme: str, model: Any) -> ModelConfig:
    """The preset of that name under a scheme, with what a `Model` gives. ConfigError for a field that such a model does
    not have, and for a preset that needs another objective."""
    changes = {key: value for key, value in asdict(model).items() if value is not None}
    if objective == "classify":
        return vision_preset(name, scheme=scheme, **changes)
    shape = preset(name, scheme=scheme, **changes)
    if objective == "mlm":
        return replace(shape, causal=False)
    if not shape.causal:
        raise ConfigError(f"preset {name} attends to both sides of a token: it needs --objective mlm")
    return shape
