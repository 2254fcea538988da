"""geonorm: residual schemes for Transformers, and a laboratory to compare them.

Public names load on first use, so that `import geonorm` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

PUBLIC = {
    "parse": "schemes",
    "names": "schemes",
    "Scheme": "schemes",
    "Placement": "schemes",
    "Site": "schemes",
    "Residual": "residual",
    "geodesic_update": "ops",
    "Decoder": "nn",
    "DecoderConfig": "nn",
    "compare": "lab.compare.study",
    "ladder": "lab.ladder.study",
    "simulate": "dynamics.simulate",
    "probe": "lab.studies.probe",
    "GeonormError": "errors",
}
MODULES = {
    "anatomy": "sites.anatomy",
    **{name: name for name in "dynamics errors hf lab nn norms ops probes report residual schemes sphere".split()},
}

__all__ = [*PUBLIC, *MODULES]


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(f".{PUBLIC[name]}", __name__), name)
    if name in MODULES:
        return import_module(f".{MODULES[name]}", __name__)
    raise AttributeError(f"module 'geonorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
