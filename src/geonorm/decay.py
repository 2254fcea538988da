"""How a step shrinks over depth: the laws that schemes follow, that networks are fitted to, and that figures draw."""

from typing import Annotated, Any, Literal, get_args

from .settings import Range

Law = Literal["harmonic", "sqrt", "linear", "constant"]
LAWS: tuple[Law, ...] = get_args(Law)
Schedule = Law | Annotated[float, Range(-16, 16, "must lie in [-16, 16], as a power of depth")]


def schedule(kind: Schedule, alpha: Any, t: Any, depth: int) -> Any:
    """Step size at depth-time t = 1..depth: harmonic alpha/t, sqrt alpha/sqrt(t), linear alpha (depth-t+1)/depth; a
    number p alpha t^-p."""
    if isinstance(kind, float):
        return alpha * t**-kind
    if kind == "harmonic":
        return alpha / t
    if kind == "sqrt":
        return alpha / t**0.5
    if kind == "linear":
        return alpha * (depth - t + 1) / depth
    return alpha
