"""`geonorm.simulate`: schemes side by side as particle systems, measured beside what theory says about each.

A trace has one row per scheme, seed and time, in the schema of run directories as far as it applies. A simulation moves
in continuous depth, so what a network's trace says of a step (step_norm, radial, tangential, ratio, angle) is said of
the velocity here: per layer. Rows have the extra columns seed, time, gap (1 - mean cosine, without cancellation), speed
(s, mean over tokens that turn), order and clusters (among at most 2048 tokens: their number is quadratic work).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import exp, log, log1p, nan
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor

from .. import sphere
from ..devices import pick_device
from ..errors import ConfigError
from ..parsing import finite_or_none
from ..results import Result, Rows
from ..schemes import Scheme, parse, schemes_in
from ..settings import check_unused, from_dict
from .closed import ClosedCurve, solve_equiangular
from .config import DEFAULT_SCHEMES, SimulateConfig
from .drawn import SLOWEST, DrawnAttention, DrawnFlow, DrawnMlp, DrawnSublayer, shrink_gap
from .fields import build_sublayers
from .flow import Flow, changed_values, check_values
from .integrators import integrate
from .laws import Law, clusters, collapse_time, cosine_rate, gap, order_parameter, radius_cv, terminal_law
from .pictures import take_pictures
from .rates import in_plane, settled_radius
from .starts import STARTS
from .theory import Terminal, describe_law, initial_turn, terminal

Progress = Callable[[str, float], None]
CLUSTERED = 2048
"""Most tokens among which clusters are counted, evenly spaced; 20,000 would take longer than what moves them."""
COLLAPSED = 1e-2
"""Mean cosine of 0.99: from here on the tokens count as one."""
WIDE = 32
"""Dimensions from which on theory says how fast uniform tokens turn at first."""
NARROW = 0.01
"""Opening of a cone up to which its tokens count as nearly the same."""
ROUNDING = {"float64": 1e-24, "float32": 1e-11}
"""1 - cos below which positions begin to be rounding error: no law is fitted there."""
TOGETHER = {"float64": 1e-26, "float32": 1e-12}
"""1 - cos at which a scheme's simulation ends early: nothing of the collapse is left to see, and to follow an
exponential further costs an explicit integrator most of its steps."""
OF_THE_VELOCITY = ("step_norm", "radial", "tangential", "ratio", "angle", "update_norm", "clamped", "speed")
OF_A_NETWORK = ("cos_ones", "angle_ones", "cos_null", "rotation", "ratio_p99", "off_plane", "grad_norm")
"""Columns of a network's trace that are unknown here."""


@dataclass(frozen=True, repr=False)
class Simulation(Result):
    """summary: the content of summary.json. trace: rows. theory: the closed equation per scheme, where it applies.
    particles: the frames of `pictures.take_pictures` per scheme, of other tokens than the trace where weights are the
    identity and dim is above 3. trajectories: what `keep`
    names of every particle, per scheme: `time` (times,) in fp64, tokens (seeds, times, n, dim), stream the same or
    (seeds, times, n, streams, dim), on the CPU; NaN where the tokens of a seed had come together before.

    Filled scheme by scheme; status is "interrupted", and missing names the schemes to come, until all are there."""

    config: SimulateConfig
    summary: dict[str, Any]
    trace: list[dict[str, Any]] = field(default_factory=list)
    theory: dict[str, dict[str, Any]] = field(default_factory=dict)
    particles: dict[str, Any] = field(default_factory=dict)
    trajectories: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    @staticmethod
    def empty(config: SimulateConfig) -> Simulation:
        """A simulation in which no scheme has run yet."""
        state = {"schemes": [], "missing": [str(parse(scheme)) for scheme in config.schemes]}
        scale = {"beta": config.temperature, "depth": config.layers}
        return Simulation(config, {"kind": "simulation", "status": "interrupted", **asdict(config), **state, **scale})

    def tables(self) -> dict[str, Rows]:
        return {"schemes": self.summary["schemes"], "trace": self.trace}

    def files(self) -> dict[str, Any]:
        """Content of the files of a simulation directory, by name."""
        return {
            "summary.json": self.summary,
            "trace.jsonl": self.trace,
            "theory.json": self.theory,
            "particles.json": self.particles,
        }


def simulate(schemes: Sequence[str | Scheme] | str | Scheme = DEFAULT_SCHEMES, **settings: Any) -> Simulation:
    """Run schemes side by side as particle systems, as `geonorm simulate` does. Writes nothing.

    settings: those of the command line. Raises ConfigError, before the first scheme runs, for bad input, GeonormError
    where the integration fails.

    >>> simulation = geonorm.simulate("post", tokens=4, dim=4, time=10.0, points=9, seeds=1)
    >>> simulation.frame("trace")["cos_pair"].round(2).tolist()[1:]
    [0.14, 0.38, 0.71, 0.93, 0.99, 1.0, 1.0, 1.0]
    """
    listed = [schemes] if isinstance(schemes, (str, Scheme)) else schemes
    config: SimulateConfig = from_dict(SimulateConfig, {**settings, "schemes": [str(parse(rule)) for rule in listed]})
    check_unused(config, settings)
    return run_simulation(config)


def run_simulation(
    config: SimulateConfig, progress: Progress = lambda scheme, done: None, into: Simulation | None = None
) -> Simulation:
    """Run every scheme of a config.

    `into` is filled scheme by scheme and returned, so that it holds those that were finished where this raises or is
    interrupted; schemes that it holds already are not run again. progress(scheme, share) ends each scheme with a share
    of 1. All schemes are checked before the first runs.
    """
    schemes = [parse(scheme) for scheme in config.schemes]
    for scheme in schemes:
        if schemes.count(scheme) > 1:
            raise ConfigError(f"--schemes names {scheme} twice")
    extra = (config.delta,) if config.init == "cone" else ()
    dtype = getattr(torch, config.dtype)
    start = STARTS[config.init](config.tokens, config.dim, *extra, seeds=range(config.seeds), dtype=dtype)
    start = start.to(pick_device(config.device))
    simulation = Simulation.empty(config) if into is None else into
    with torch.no_grad():
        for scheme in schemes:
            check_scheme(config, scheme, start)
        for scheme in schemes:
            if str(scheme) in simulation.summary["missing"]:
                run_scheme(config, scheme, start, simulation, progress)
                progress(str(scheme), 1.0)
    del simulation.summary["missing"]
    simulation.summary["status"] = "finished"
    return simulation


def check_scheme(config: SimulateConfig, scheme: Scheme, start: Tensor) -> None:
    """ConfigError for a scheme that particles cannot follow up to the last time. A few particles try it."""
    if config.weights != "network":
        check_values(scheme, config.layers)
    if why := next((kind.about.why_from_start for kind in schemes_in(scheme) if kind.about.why_from_start), None):
        raise ConfigError(f"{scheme} does not move particles, {why}: simulate the scheme inside")
    flow = Flow(scheme, build_sublayers(config, scheme, 0, start.device), config.layers)
    few = flow.start(start[:1, :2])
    if config.method == "layers":
        flow.check_forwards(few, config.time - 1)
    else:
        for time in (0.0, *flow.breaks(0.0, config.time)):
            flow.keeps_radius(time)
        flow.check_forwards(few, config.time)
        flow.velocity(few, config.time)


def run_scheme(
    config: SimulateConfig, scheme: Scheme, start: Tensor, simulation: Simulation, progress: Progress
) -> None:
    """Simulate one scheme, and add it to the simulation when all its results are there."""
    name, alike = str(scheme), config.weights == "identity"  # every dimension acts as any other, and every seed
    batches = [start] if alike else list(start.split(1))
    flows = [Flow(scheme, build_sublayers(config, scheme, seed, start.device), config.layers)
             for seed in range(len(batches))]  # fmt: skip
    pairs = list(zip(flows, batches, strict=True))
    velocities = [rate for flow, batch in pairs for rate in cosine_rate(flow, flow.start(batch)).tolist()]
    times = config.times(config.time)
    for _ in range(2):
        rows, trajectories = follow(config, name, pairs, times, progress)
        by_seed = [[row for row in rows if row["seed"] == seed] for seed in range(config.seeds)]
        shared = min(map(len, by_seed))  # a seed that came together earlier ends earlier
        by_seed = [of_seed[:shared] for of_seed in by_seed]
        law, end = mean_law(by_seed, ROUNDING[config.dtype]), by_seed[0][-1]["time"]
        if law.kind != "early" or not 0 < end < config.time:
            break
        times = config.times(end)  # tokens came together long before the end: as many measurements until then
    particles = take_pictures(flows[0], config, start[:1], simulation.particles)
    expected, why = predict_law(config, flows[0], start)
    curve = predict_curve(config, scheme, by_seed, expected)
    row = {
        "scheme": name,
        "law": describe_law(scheme),
        "initial_velocity": sum(velocities) / len(velocities),
        "initial_turn_predicted": predict_turn(config, scheme),
        "terminal_law_predicted": None if expected is None else expected.kind,
        "terminal_exponent_predicted": None if expected is None else expected.exponent,
        "terminal_law_unpredicted": why,
        **summarize_scheme(by_seed, curve, law),
    }
    simulation.trace.extend(rows)
    simulation.particles.update(particles)
    if curve:
        simulation.theory[name] = curve
    if trajectories:
        simulation.trajectories[name] = trajectories
    simulation.summary["schemes"].append(row)
    simulation.summary["missing"].remove(name)


def follow(
    config: SimulateConfig, name: str, pairs: list[tuple[Flow, Tensor]], times: list[float], progress: Progress
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Rows of the trace at these times, until all tokens are together, and the trajectories that `keep` names."""
    rows: list[dict[str, Any]] = []
    stored: dict[str, Tensor] = {}
    for first, (flow, batch) in enumerate(pairs):
        walk = integrate(flow, flow.start(batch), times, method=config.method, log_time=config.log_time)
        for index, (tau, x) in enumerate(walk):
            for kind in config.keep:
                value = flow.tokens(x) if kind == "tokens" else x
                if kind not in stored:
                    stored[kind] = torch.full((config.seeds, len(times), *value.shape[1:]), nan, dtype=value.dtype)
                stored[kind][first : first + len(batch), index] = value.cpu()
            measured = measure(flow, x, tau)
            for seed, row in enumerate(measured, first):
                rows.append({"step": index, "time": tau, "scheme": name, "seed": seed, **row})
            progress(name, 0.9 * (first + (index + 1) / len(times)) / len(pairs))  # the pictures are the rest
            if all(row["gap"] < TOGETHER[config.dtype] for row in measured):
                break
    longest = max(row["step"] for row in rows) + 1
    trajectories = {kind: values[:, :longest].contiguous() for kind, values in stored.items()}
    return rows, {"time": torch.tensor(times[:longest], dtype=torch.float64), **trajectories} if trajectories else {}


def measure(flow: Flow, x: Tensor, tau: float) -> list[dict[str, Any]]:
    """One row per seed."""
    theta = flow.tokens(x)
    some = theta[..., :: -(-theta.shape[-2] // CLUSTERED), :]
    columns: dict[str, Tensor | None] = {
        "radius": flow.radius(x).mean(-1), "radius_cv": radius_cv(flow.radius(x)), "gap": gap(theta),
        "cos_pair": 1 - gap(theta), "order": order_parameter(theta), "clusters": clusters(some),
        **dict.fromkeys((*OF_THE_VELOCITY, *OF_A_NETWORK)),
    }  # fmt: skip
    if flow.scheme.planar:
        rule, site = flow.rule(tau)
        u = flow.update(x, tau)
        parts = flow.parts_at(rule, site, 2, x)
        drho, dsigma, v = in_plane(rule, parts, x, u, site)
        radius, across = sphere.radius(x), dsigma * sphere.radius(v)
        s = torch.where(dsigma == 0, torch.nan, settled_radius(rule, parts, x, site) / dsigma)
        hit = rule.clamped(x, u, flow.parts_at(rule, site, x.shape[-1], x)(), site)
        columns |= {
            "step_norm": (drho**2 * radius**2 + across**2).sqrt().mean((-1, -2)),
            "radial": (drho * radius).mean((-1, -2)), "tangential": across.mean((-1, -2)),
            "ratio": (across / radius).mean((-1, -2)), "angle": (across / radius).mean((-1, -2)),
            "update_norm": sphere.radius(u).mean((-1, -2)), "speed": s.nanmean((-1, -2)),
            "clamped": None if hit is None else hit.to(x.dtype).mean(-1),
        }  # fmt: skip
    listed = {key: [None] * len(x) if column is None else column.tolist() for key, column in columns.items()}
    return [
        {"layer": tau, "kind": "attn", "t": tau + 1}
        | {key: finite_or_none(values[i]) for key, values in listed.items()}
        for i in range(len(x))
    ]


def drawn_sublayers(config: SimulateConfig) -> tuple[DrawnSublayer, ...] | None:
    """The sub-layers in the form of `drawn`, if docs/theory-random-weights.md applies: whole layers, each with weights
    of its own, and no positions. None elsewhere."""
    if config.weights != "network" or config.per != "layer" or config.method != "layers" or config.rope is not None:
        return None
    attention = DrawnAttention(causal=config.causal)
    if config.mlp is None:
        return (attention,)
    gated = config.mlp == "swiglu"
    units = {"width": config.dim, "hidden": config.hidden or 4 * config.dim}
    return attention, DrawnMlp("silu" if gated else config.mlp, gated=gated, **units)


def predict_law(config: SimulateConfig, flow: Flow, start: Tensor) -> tuple[Terminal | None, str | None]:
    """The law of 1 - cos that theory foresees for these starts, and why where it foresees none."""
    scheme = flow.scheme
    if not scheme.planar:
        return None, scheme.about.lawless or "its step leaves the plane of x and u"
    if config.rope is not None:
        return None, "the laws are of scores that know no positions"
    if subs := drawn_sublayers(config):
        if reason := changed_values(scheme, config.layers):
            return None, reason
        law = DrawnFlow(scheme, config.layers, subs).find_law(SLOWEST if config.causal else 0.0)
        return law, law.why or None
    if config.weights != "identity":
        return None, "the laws are those of V = I, and these weights are random"
    laws = [
        terminal(scheme, config.layers, config.causal, radii, beta=config.temperature, layers=config.method == "layers")
        for radii in {tuple(each) for each in flow.radius(flow.start(start)).double().tolist()}
    ]
    if len({law.kind for law in laws}) > 1:
        return None, "its law is another one for every seed"
    rates = [law.exponent for law in laws if law.exponent is not None]
    return Terminal(laws[0].kind, sum(rates) / len(rates) if rates else None), laws[0].why or None


def predict_turn(config: SimulateConfig, scheme: Scheme) -> float | None:
    """How fast uniform tokens turn at first, where theory knows it."""
    full = config.weights == "identity" and config.init == "uniform" and not config.causal
    if not full or not scheme.planar or config.dim < max(WIDE, 4 * config.temperature**2):
        return None
    return initial_turn(scheme, config.tokens, config.dim, config.temperature, config.layers)


def predict_curve(
    config: SimulateConfig, scheme: Scheme, by_seed: list[list[dict[str, Any]]], law: Terminal | None
) -> dict[str, list[float | None]]:
    """Times, gap, radius, speed and velocity as theory has them at the measured times; empty where it has none."""
    times = [row["time"] for row in by_seed[0]]
    subs = drawn_sublayers(config)
    full = config.weights == "identity" and not config.causal and config.method != "layers"
    if full and scheme.planar and config.init == "equiangular":
        curve = solve_equiangular(scheme, config.tokens, config.temperature, times, config.layers)
    elif law and subs and config.init == "cone" and config.delta <= NARROW and times[-1] <= config.layers:
        turns = DrawnFlow(scheme, config.layers, subs).turn_through()
        gaps, radii = shrink_gap(turns, config.tokens), [turns[0].before, *(turn.after for turn in turns)]
        places, none = [int(time) * len(subs) for time in times], [nan] * len(times)
        first = sum(of_seed[0]["gap"] for of_seed in by_seed) / len(by_seed)
        curve = ClosedCurve(times, [first * gaps[i] for i in places], [radii[i] for i in places], none, none)
    else:
        return {}
    return {key: [finite_or_none(v) for v in values] for key, values in asdict(curve).items()}


def mean_law(by_seed: list[list[dict[str, Any]]], floor: float) -> Law:
    """The terminal law of 1 - cos, geometric mean over seeds; below `floor` positions are rounding error."""
    usable = [rows for rows in zip(*by_seed, strict=True) if all(row["gap"] > floor for row in rows)]
    mean = [exp(sum(log(row["gap"]) for row in rows) / len(rows)) for rows in usable]
    return terminal_law([rows[0]["time"] for rows in usable], mean, floor=floor)


def summarize_scheme(
    by_seed: list[list[dict[str, Any]]], curve: dict[str, list[float | None]], law: Law
) -> dict[str, Any]:
    """A scheme's columns of the summary: terminal law, speed and radius at both ends, beside theory."""
    times = [row["time"] for row in by_seed[0]]
    gaps = [[row["gap"] for row in of_seed] for of_seed in by_seed]
    crossings = [time for g in gaps if (time := collapse_time(times, g, COLLAPSED)) is not None]

    def at(key: str, place: int) -> float | None:
        values = [of_seed[place][key] for of_seed in by_seed if of_seed[place][key] is not None]
        return sum(values) / len(values) if values else None

    def predicted(key: str, place: int) -> float | None:
        return curve[key][place] if curve else None

    return {
        "initial_velocity_predicted": predicted("velocity", 0),
        "initial_turn": at("angle", 0),
        "terminal_law": law.kind,
        "terminal_exponent": law.rate,
        "terminal_exponent_interval": None if law.rate is None else [law.low, law.high],
        "collapse_time": sum(crossings) / len(crossings) if len(crossings) == len(gaps) else None,
        "collapsed": len(crossings),
        "time_final": times[-1],
        "cos_pair_final": at("cos_pair", -1),
        "speed_initial": at("speed", 0),
        "speed_initial_predicted": predicted("speed", 0),
        "speed_final": at("speed", -1),
        "speed_final_predicted": predicted("speed", -1),
        "radius_final": at("radius", -1),
        "radius_final_predicted": predicted("radius", -1),
        "radius_exponent": fit_power(times, [at("radius", i) for i in range(len(times))]),
    }


def fit_power(times: list[float], radii: list[float | None]) -> float | None:
    """q of r ~ t^q: least squares over the second half of log-time, t = time + 1. None with fewer than four points."""
    half = log1p(times[-1]) / 2
    points = [(log1p(t), log(r)) for t, r in zip(times, radii, strict=True) if r and log1p(t) >= half]
    return linear_regression(*zip(*points, strict=True)).slope if len(points) >= 4 else None
