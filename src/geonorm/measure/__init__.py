"""The geometry of hidden states: measures of a stream before and after a site, and of norms, on any model.

To be read in this order: `metrics` (the definitions), `accumulate` (over any number of tokens), `capture` (while a
model runs), `subject` (whatever the model is). Names load on first use; `config` needs no torch."""

from __future__ import annotations

from ..lazy import load_on_use

PUBLIC = {
    "NormMeasure": "accumulate",
    "SiteMeasure": "accumulate",
    "SiteMoments": "metrics",
    "step_measures": "metrics",
}

__all__ = list(PUBLIC)
__getattr__ = load_on_use(__name__, PUBLIC)
