"""How the weights of a model may be cut among devices, from the one table of roles."""

from __future__ import annotations

from ..nn.roles import ROLES

PLACES = {
    "attn.branch": ("q", "k", "v", "o"),
    "mlp.branch": ("gate", "up", "down"),
    "both.branch.attn": ("q", "k", "v", "o"),
    "both.branch.mlp": ("gate", "up", "down"),
}
"""Where a block keeps its matrices: sequential, then parallel blocks."""
CUTS = {"rows": "colwise", "columns": "rowwise"}
"""Our dimension of an (out, in) matrix to the word of transformers; what is cut by columns is summed over devices, so
that every scheme sees whole rows of the stream and of the update."""


def tensor_parallel_plan() -> dict[str, str]:
    """Module of a block to how it is cut; norms, scalars and the stream are whole on every device."""
    return {f"blocks.*.{place}.{role}": CUTS[ROLES[role].split] for place, roles in PLACES.items() for role in roles}
