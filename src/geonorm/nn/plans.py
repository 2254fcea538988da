"""How the weights of a model may be cut among devices, from the one table of roles."""

from __future__ import annotations

from .config import GATED, TrunkConfig
from .roles import ROLES

ATTENTION = ("q", "k", "v", "o", "gate")
FEED_FORWARD = ("gate", "up", "down")
PLACES = {
    "sequential": {"attn.branch": ATTENTION, "mlp.branch": FEED_FORWARD},
    "parallel": {"both.branch.attn": ATTENTION, "both.branch.mlp": FEED_FORWARD},
}
"""Where each kind of block keeps its matrices."""
CUTS = {"rows": "colwise", "columns": "rowwise"}
"""Our dimension of an (out, in) matrix to the word of PyTorch and transformers; what is cut by columns is summed over
devices, so that every scheme sees whole rows of the stream and of the update."""


def tensor_parallel_plan(config: TrunkConfig) -> dict[str, str]:
    """Module of a block to how it is cut; norms, scalars and the stream are whole on every device."""
    gates = {ATTENTION: config.attn_gate, FEED_FORWARD: config.mlp in GATED}
    return {
        f"blocks.*.{place}.{name}": CUTS[ROLES[name].split]
        for place, names in PLACES[config.block].items()
        for name in names
        if name != "gate" or gates[names]
    }
