"""Settings of `geonorm simulate` and geonorm.simulate: what is simulated, how, and what is refused. No torch here."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil, expm1, log1p, sqrt
from typing import Annotated, Literal

from ..errors import require
from ..settings import TINIEST, Count, NotNegative, Positive, Range, Settings, check_out

DEFAULT_SCHEMES = ("post", "pre", "peri", "sqrt", "ngpt(alpha=1)", "geonorm")


@dataclass(frozen=True)
class SimulateConfig(Settings):
    """Tokens as particles on the sphere (arXiv:2510.22026): attention with fixed or initial weights proposes, the
    scheme moves, and the cosine between tokens is followed in depth, beside theory. How trained models compare:
    docs/theory-random-weights.md, last section."""

    common = ("schemes", "init", "tokens", "dim", "beta", "time", "seeds", "out")
    examples = (
        "geonorm simulate --schemes pre post geonorm --tokens 16 --dim 32 --time 1000 --out runs/theory",
        "geonorm simulate --schemes post peri --init cone --weights network --per layer --mlp swiglu --causal "
        "--method layers --time 24 --keep tokens --out runs/network",
    )

    schemes: list[str] = field(default_factory=lambda: list(DEFAULT_SCHEMES))
    """Residual schemes, as in `geonorm schemes`."""
    init: Literal["equiangular", "uniform", "gaussian", "cone"] = "equiangular"
    """Tokens at the start: orthonormal; uniform on the sphere; normal (radii random too, which schemes with
    entry=embedding keep); or within a cone."""
    tokens: Annotated[int, Range(2)] = 16
    """Particles n."""
    dim: Annotated[int, Range(2)] = 32
    """Dimension d; at least n for equiangular."""
    beta: NotNegative | None = None
    """Inverse temperature of attention; 1 for identity weights, sqrt(dim) for random ones when not given."""
    time: Positive = 1000.0
    """Depth at which the simulation ends; a layer is one unit."""
    seeds: Count = 2
    """Independent starts (and weights), numbered from 0."""
    out: str = "runs/simulate"
    """Directory for trace.jsonl, summary.json and figures; new, or one that holds this same simulation."""
    weights: Literal["identity", "kaiming", "gaussian", "network"] = "identity"
    """Q = K = V = I, or random matrices: kaiming of standard deviation sqrt(2/fan_in), gaussian of 1/sqrt(fan_in);
    network: attention and MLP of a decoder as the scheme begins it (deviations, constraints, modules on q, k, v)."""
    per: Literal["run", "layer"] = "run"
    """Whether random weights are shared by all layers (run) or drawn anew in each (layer)."""
    causal: bool = False
    """Whether a token sees only those before it and itself."""
    heads: Count = 1
    """Attention heads of a network; divides dim."""
    mlp: Literal["gelu", "gelu_tanh", "relu2", "swiglu"] | None = None
    """The MLP after each attention of a network; none when not given."""
    hidden: Count | None = None
    """Hidden units of the MLP; 4 dim when not given."""
    rope: Positive | None = None
    """Base of a network's rotary positions (10000 in most models); no positions when not given."""
    delta: Annotated[float, Range(TINIEST, 2, "must lie in (0, 2]")] = 0.1
    """Opening of the cone: pairwise cosine at least 1 - delta."""
    method: Literal["adaptive", "layers"] = "adaptive"
    """Continuous depth by Dormand-Prince 5(4), or the network itself: whole layers with h = 1."""
    log_time: bool = True
    """Measurements even in log(1 + time), as power laws ask for; false: even in time."""
    points: Annotated[int, Range(8)] = 60
    """Measurements, those at the start and at the end included."""
    depth: Count | None = None
    """Blocks L, for schemes that ask (deepnorm, mix, decay=linear); the time, rounded up, when not given."""
    dtype: Literal["float64", "float32"] = "float64"
    """Precision; float32 follows a collapse to 1 - cos of about 1e-12 only."""
    device: str = "cpu"
    """auto, cpu or cuda."""
    keep: list[Literal["tokens", "stream"]] = field(default_factory=list)
    """What to store of every particle at each measurement: tokens (directions of what the head would read), stream
    (the state); seeds x points x tokens x dim numbers of each for a scheme."""

    def __post_init__(self) -> None:
        named = self.schemes if isinstance(self.schemes, (list, tuple)) else [self.schemes]
        object.__setattr__(self, "schemes", [str(scheme) for scheme in named])
        super().__post_init__()
        require(self.schemes, "--schemes is empty; name at least one (geonorm schemes lists them)")
        require(
            self.method != "layers" or self.time == int(self.time),
            f"method layers counts whole layers: time must be a whole number, got {self.time}",
        )
        check_out(self.out)

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.init != "cone":
            yield "delta", "--init cone"
        if self.weights == "identity":
            yield "per", "--weights kaiming, gaussian or network"
        if self.weights == "network":
            yield "beta", "weights without a temperature of their own, not --weights network"
        else:
            yield from ((name, "--weights network") for name in ("heads", "mlp", "rope"))
        if self.mlp is None:
            yield "hidden", "--mlp"

    @property
    def layers(self) -> int:
        """Depth L of the schemes that ask for one."""
        return max(1, ceil(self.time)) if self.depth is None else self.depth

    @property
    def temperature(self) -> float:
        """beta: of a decoder in units of radius 1, where matrices of standard deviation 1/sqrt(dim) read y / |y|."""
        if self.weights == "network":
            return self.dim / sqrt(self.dim / self.heads)
        if self.beta is not None:
            return self.beta
        return 1.0 if self.weights == "identity" else sqrt(self.dim)

    def times(self, end: float, count: int = 0, log: bool = False) -> list[float]:
        """Times from 0 to `end`, `points` of them or `count`, even in log(1 + time) where `log_time` or `log` is set,
        else in time; the whole ones where layers are counted."""
        shares = [i / ((count or self.points) - 1) for i in range(count or self.points)]
        times = [expm1(share * log1p(end)) if log or self.log_time else share * end for share in shares]
        times[0], times[-1] = 0.0, float(end)
        return sorted({float(round(t)) for t in times}) if self.method == "layers" else times
