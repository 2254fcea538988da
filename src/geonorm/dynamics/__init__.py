"""The particle system of normalization (arXiv:2510.22026), driven by the schemes that train.

To be read in this order: `rates` (what a scheme does to one token), `fields` (what is proposed to it), `flow` (both
together), `integrators`, `starts`, `laws` (what is measured, and how a run ends), `theory`
(what is known before it begins; `closed` solves its equation), `drawn` (what weights of their own in every layer do,
MLPs among them), and `simulate`, which sets them side by side and takes `pictures`. Names load on first use; `config`
needs no torch."""

from ..lazy import load_on_use

PLACES = {
    "fields": "Attention Field Fresh random_attention",
    "flow": "Flow",
    "integrators": "integrate",
    "laws": "Law clusters collapse_time cosine_rate gap order_parameter radius_cv terminal_law variance",
    "rates": "radial_rate speed",
    "starts": "STARTS cone equiangular gaussian uniform",
}
PUBLIC = {name: place for place, names in PLACES.items() for name in names.split()}

__all__ = list(PUBLIC)
__getattr__ = load_on_use(__name__, PUBLIC)
