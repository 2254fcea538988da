"""geonorm: residual schemes for Transformers, and a laboratory to compare them.

Public names load on first use, so that `import geonorm` costs next to nothing.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

__version__ = "0.2.0"

PUBLIC = {
    "parse": "schemes",
    "names": "schemes",
    "Scheme": "schemes",
    "Placement": "schemes",
    "Site": "schemes",
    "Residual": "residual",
    "same": "equality",
    "geodesic_update": "ops",
    "Decoder": "models",
    "DecoderConfig": "models",
    "preset": "models",
    "parameter_groups": "models",
    "initialize": "models",
    "constrain": "models",
    "compare": "lab.compare.compare",
    "ladder": "lab.compare.ladder",
    "simulate": "dynamics.simulate",
    "probe": "lab.probe",
    "load": "lab.load",
    "GeonormError": "errors",
}
MODULES = {
    "anatomy": "measure.anatomy",
    **{name: name for name in "dynamics errors hf lab measure models norms ops report residual schemes sphere".split()},
}

EXTRAS = {**dict.fromkeys(("compare", "ladder", "simulate", "probe", "load"), "train"), "hf": "hf"}
"""What needs more than torch, numpy and safetensors: the extra that brings it."""

__all__ = [name for name in (*PUBLIC, *MODULES) if name not in EXTRAS]


def __getattr__(name: str) -> Any:
    try:
        if name in PUBLIC:
            return getattr(import_module(f".{PUBLIC[name]}", __name__), name)
        if name in MODULES:
            return import_module(f".{MODULES[name]}", __name__)
    except ModuleNotFoundError as error:
        if name not in EXTRAS:
            raise
        need = f"geonorm.{name} needs {error.name}: pip install 'geonorm[{EXTRAS[name]}]'"
        raise import_module(".errors", __name__).ConfigError(need) from error
    raise AttributeError(f"module 'geonorm' has no attribute {name!r}")


def __dir__() -> list[str]:
    absent = {name for name, extra in EXTRAS.items() if not find_spec({"train": "scipy", "hf": "transformers"}[extra])}
    return sorted({*globals(), *PUBLIC, *MODULES} - absent)  # `help` asks for every name
