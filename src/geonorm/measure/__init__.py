"""The geometry of hidden states: what sub-layers and norms do to the residual stream, in any model.

To be read in this order: `metrics` (the definitions), `accumulate` (over any number of tokens), `anatomy` and `observe`
(the sub-layers of a model, watched while it runs), `recognise` (the rule of a stock model, by `record`, `fits`,
`take_apart` and `rebuild`), `capture` (their measures), `probe` (a model, its inputs and loss).
Names load on first use; `config` needs no torch."""

from ..lazy import load_on_use

PUBLIC = {
    "NormMeasure": "accumulate",
    "SiteMeasure": "accumulate",
}

__all__ = list(PUBLIC)
__getattr__ = load_on_use(__name__, PUBLIC)
