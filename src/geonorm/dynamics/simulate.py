"""`geonorm.simulate`: schemes side by side as particle systems, measured beside what theory says about each.

A trace has one row per scheme, seed and time, in the schema of run directories as far as it applies. A simulation moves
in continuous depth, so what a network's trace says of a step (step_norm, radial, tangential, ratio, angle) is said of
the velocity here: per layer. Rows have the extra columns seed, time, gap (1 - mean cosine, without cancellation), speed
(s, mean over tokens that turn), order and clusters (among at most 2048 tokens: their number is quadratic work).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import exp, log, log1p
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
from ..settings import from_dict
from . import theory
from .config import SimulateConfig
from .drawn import SLOWEST, DrawnFlow, shrink_gap
from .flow import Flow, changed_values, check_values
from .integrators import integrate
from .laws import collapse_time, law_at_end
from .observables import clusters, cosine_rate, gap, order_parameter, radius_cv
from .pictures import Album, alike, take_pictures
from .rates import in_plane, settled_radius
from .starts import STARTS
from .sublayers import build_sublayers, drawn, inverse_temperature
from .trajectories import Trajectories, check_memory, check_room, join, look

Progress = Callable[[str, float], None]
CLUSTERED = 2048
"""Most tokens among which clusters are counted, evenly spaced; 20,000 would take longer than what moves them."""
COLLAPSED = 1e-2
"""Mean cosine of 0.99: from here on the tokens count as one."""
NARROW = 0.01
"""Opening of a cone whose tokens count as nearly one."""
ROUNDING = {"float64": 1e-24, "float32": 1e-11}
"""1 - cos below which positions begin to be rounding error: no law is fitted there."""
TOGETHER = {"float64": 1e-26, "float32": 1e-12}
"""1 - cos at which a scheme's simulation ends early: nothing of the collapse is left to see, and to follow an
exponential further costs an explicit integrator most of its steps."""


@dataclass(frozen=True, repr=False)
class Simulation(Result):
    """summary: what summary.json holds. trace: rows. theory: the closed equation per scheme, where it applies.
    particles: directions of the first seed at a few times, in three dimensions, per scheme. trajectories: what `keep`
    names of every particle, per scheme (`trajectories.Trajectories`). Filled scheme by scheme; status is "interrupted",
    and missing names the schemes to come, until all are there."""

    def __repr__(self) -> str:
        """A line: the trace is as long as the simulation."""
        done = ", ".join(row["scheme"] for row in self.summary.get("schemes", ()))
        return f"Simulation({done or 'no scheme yet'}; {len(self.trace):,} rows, {self.summary.get('status')})"

    config: SimulateConfig
    summary: dict[str, Any]
    trace: list[dict[str, Any]]
    theory: dict[str, dict[str, Any]]
    particles: dict[str, Any]
    trajectories: Trajectories = field(default_factory=dict)

    @staticmethod
    def empty(config: SimulateConfig) -> Simulation:
        """Of no scheme yet."""
        found = {"schemes": [], "missing": [str(parse(scheme)) for scheme in config.schemes]}
        scale = {"beta": inverse_temperature(config), "depth": config.layers}
        summary = {"kind": "simulation", "status": "interrupted", **asdict(config), **found, **scale}
        return Simulation(config, summary, [], {}, {})

    def add(self, row: dict[str, Any], part: Simulation) -> None:
        """Takes in a finished scheme: its row of the summary, and the rest."""
        self.trace.extend(part.trace)
        self.theory.update(part.theory)
        self.particles["frames"] = self.particles.get("frames", {}) | part.particles.pop("frames")
        self.particles.update(part.particles)
        self.trajectories.update(part.trajectories)
        self.summary["schemes"].append(row)
        self.summary["missing"].remove(row["scheme"])

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


def simulate(
    config: SimulateConfig | None = None,
    *,
    progress: Progress = lambda scheme, done: None,
    into: Simulation | None = None,
    **settings: Any,
) -> Simulation:
    """Runs every scheme of a config, or of its fields given by name: simulate(schemes=["pre", "geonorm"], tokens=8).

    Writes nothing. `into` is filled scheme by scheme and returned, so that it keeps those that were finished where this
    raises or is interrupted; schemes that it holds already are not run again. progress(scheme, share) ends each scheme
    with a share of 1. All schemes are checked before the first runs. Raises ConfigError for bad input, GeonormError
    where the integration fails.
    """
    if config is None:
        config = from_dict(SimulateConfig, settings)
    elif settings or not isinstance(config, SimulateConfig):
        raise ConfigError("simulate takes either a SimulateConfig or settings by name, such as schemes='pre'")
    schemes = [parse(scheme) for scheme in config.schemes]
    for scheme in schemes:
        if schemes.count(scheme) > 1:
            raise ConfigError(f"--schemes names {scheme} twice")
    check_room(config, schemes)
    if (device := pick_device(config.device)).type == "cpu":
        check_memory(config, schemes)
    start = beginning(config).to(device)
    results = Simulation.empty(config) if into is None else into
    with torch.no_grad():
        for scheme in schemes:
            check_scheme(config, scheme, start)
        for scheme in schemes:
            if str(scheme) in results.summary["missing"]:
                part = Simulation(config, {}, [], {}, {**results.particles, "frames": {}})
                results.add(one(config, scheme, start, part, progress), part)
                progress(str(scheme), 1.0)
    del results.summary["missing"]
    results.summary["status"] = "finished"
    return results


def check_scheme(config: SimulateConfig, scheme: Scheme, start: Tensor) -> None:
    """ConfigError for a scheme that particles cannot follow, or not to the end: a few of them are moved there once."""
    if config.weights != "network":
        check_values(scheme, config.layers)
    if why := next((kind.about.fresh for kind in schemes_in(scheme) if kind.about.fresh), None):
        raise ConfigError(f"{scheme} does not move particles, {why}: simulate the scheme inside")
    flow = Flow(scheme, build_sublayers(config, scheme, 0), depth=config.layers)
    few = flow.start(start[:1, :2])
    if config.method == "layers":
        flow.check_last(few, config.time - 1)
    else:
        flow.check_spheres(config.time)
        flow.velocity(few, config.time)


def beginning(config: SimulateConfig) -> Tensor:
    """Embeddings (seeds, n, d)."""
    extra = (config.delta,) if config.init == "cone" else ()
    dtype = getattr(torch, config.dtype)
    made: Tensor = STARTS[config.init](config.tokens, config.dim, *extra, seeds=range(config.seeds), dtype=dtype)
    return made


def one(
    config: SimulateConfig, scheme: Scheme, start: Tensor, results: Simulation, progress: Progress
) -> dict[str, Any]:
    """Simulates one scheme, appends its trace and pictures to the results, and returns its row of the summary."""
    name, times = str(scheme), config.times(config.points, config.log_time)
    batches = [start] if config.weights == "identity" else list(start.split(1))
    velocities: list[float] = []
    rows: list[dict[str, Any]] = []
    album, kept = Album(config), []  # type: Album, list[list[dict[str, Tensor]]]
    for place, batch in enumerate(batches):
        kept.append([])
        sublayers = build_sublayers(config, scheme, place)
        flow = Flow(scheme, sublayers, depth=config.layers)
        state = flow.start(batch)
        walk = integrate(flow, state, times, method=config.method, step=config.step, log_time=config.log_time)
        for index, (tau, x) in enumerate(walk):
            if index == 0:
                velocities += cosine_rate(flow, x, tau).tolist()
            if config.keep:
                kept[-1].append(look(flow, x, tau, config.keep))
            if place == 0:
                album.see(tau, flow.tokens(x)[0], times)
            measured = measure(flow, x, tau)
            for seed, row in enumerate(measured, place):
                rows.append({"step": index, "time": tau, "scheme": name, "seed": seed, **row})
            progress(name, 0.9 * (place + (index + 1) / len(times)) / len(batches))  # the pictures are the rest
            if all(row["gap"] < TOGETHER[config.dtype] for row in measured):
                break
    results.trace.extend(rows)
    if config.keep:
        results.trajectories[name] = join(times, kept)
    take_pictures(config, scheme, start, album, results.particles)
    return conclude(config, scheme, start, rows, sum(velocities) / len(velocities), results)


def measure(flow: Flow, x: Tensor, tau: float) -> list[dict[str, Any]]:
    """One row per seed."""
    theta = flow.tokens(x)
    some = theta[..., :: -(-theta.shape[-2] // CLUSTERED), :]
    columns: dict[str, Tensor | None] = {
        "radius": flow.radius(x).mean(-1), "radius_cv": radius_cv(flow.radius(x)), "gap": gap(theta),
        "cos_pair": 1 - gap(theta), "order": order_parameter(theta), "clusters": clusters(some),
        **dict.fromkeys(("step_norm", "radial", "tangential", "ratio", "angle", "update_norm", "clamped", "speed")),
        # of a network's trace, unknown here
        **dict.fromkeys(("cos_ones", "angle_ones", "cos_null", "rotation", "ratio_p99", "off_plane", "grad_norm")),
    }  # fmt: skip
    if flow.scheme.planar:
        rule, site = flow.rule(tau)
        u = flow.update(x, tau)
        own = flow.own(rule, site, 2, x)
        drho, dtau, v = in_plane(rule, own, x, u, site)
        radius, across = sphere.radius(x), dtau * sphere.radius(v)
        s = torch.where(dtau == 0, torch.nan, settled_radius(rule, own, x, site) / dtau)
        hit = rule.clamped(x, u, flow.own(rule, site, x.shape[-1], x)(), site)
        columns |= {
            "step_norm": (drho**2 * radius**2 + across**2).sqrt().mean((-1, -2)),
            "radial": (drho * radius).mean((-1, -2)), "tangential": across.mean((-1, -2)),
            "ratio": (across / radius).mean((-1, -2)), "angle": (across / radius).mean((-1, -2)),
            "update_norm": sphere.radius(u).mean((-1, -2)), "speed": s.nanmean((-1, -2)),
            "clamped": None if hit is None else hit.to(x.dtype).mean(-1),
        }  # fmt: skip
    listed = {key: None if column is None else column.tolist() for key, column in columns.items()}
    return [
        {"layer": tau, "kind": "attn", "t": tau + 1}
        | {key: None if column is None else finite_or_none(column[i]) for key, column in listed.items()}
        for i in range(x.shape[0])
    ]


def is_drawn(config: SimulateConfig) -> bool:
    """Whether docs/theory.md 4.4 applies: whole layers, each with weights of its own."""
    return config.weights == "network" and config.per == "layer" and config.method == "layers"


def follow_drawn(config: SimulateConfig, scheme: Scheme, times: list[float], first: float) -> theory.Path:
    """1 - cos and radius of a network as drawn, from a narrow cone whose 1 - cos is `first`, at whole layers."""
    turns = DrawnFlow(scheme, config.layers, drawn(config)).turn_through()
    block = len(drawn(config))
    gaps = shrink_gap(turns, config.tokens)[::block]
    radii = [turns[0].before, *(turn.after for turn in turns)][::block]
    none = [float("nan")] * len(times)
    layers = [int(time) for time in times]
    return theory.Path(times, [first * gaps[i] for i in layers], [radii[i] for i in layers], none, none)


def foretell(config: SimulateConfig, scheme: Scheme, start: Tensor) -> tuple[theory.Terminal | None, str | None]:
    """The law of 1 - cos that theory foresees for these starts, and why where it foresees none."""
    if not scheme.planar:
        return None, scheme.about.lawless or "its step leaves the plane of x and u"
    if config.rope is not None:
        return None, "the laws are of scores that know no positions"
    if is_drawn(config):
        if said := changed_values(scheme, config.layers):
            return None, said
        law = DrawnFlow(scheme, config.layers, drawn(config)).find_law(SLOWEST if config.causal else 0.0)
        return law, law.why or None
    if config.weights != "identity":
        return None, "the laws are those of V = I, and these weights are random"
    if config.mlp is not None:
        return None, "the laws are of attention alone where no weights are drawn"
    flow = Flow(scheme, build_sublayers(config, scheme, 0), depth=config.layers)
    radii = {tuple(each) for each in flow.radius(flow.start(start)).double().tolist()}
    if config.heads > 1:  # where particles keep radii of their own: nothing is foreseen then, also of one seed
        radii |= {(sum(each) / len(each),) for each in radii}
    kinds = (config.layers, config.causal)
    found = [
        theory.terminal(scheme, *kinds, each, beta=inverse_temperature(config), layers=config.method == "layers")
        for each in radii
    ]
    rates = [law.exponent for law in found if law.exponent is not None]
    several = len({law.kind for law in found}) > 1
    if config.heads > 1 and (several or (rates and max(rates) - min(rates) > 1e-9 * max(rates))):
        return None, "radii differ, and heads see directions apart"
    if several:
        return None, "its law is another one for every seed"
    return theory.Terminal(found[0].kind, sum(rates) / len(rates) if rates else None), found[0].why or None


def conclude(
    config: SimulateConfig,
    scheme: Scheme,
    start: Tensor,
    rows: list[dict[str, Any]],
    velocity: float,
    results: Simulation,
) -> dict[str, Any]:
    """What is found about a scheme: initial and terminal velocity, speed and radius at both ends, beside theory."""
    name, seeds = str(scheme), config.seeds
    by_seed = [[row for row in rows if row["seed"] == seed] for seed in range(seeds)]
    shared = min(map(len, by_seed))  # a seed that came together earlier ends earlier
    times = [row["time"] for row in by_seed[0][:shared]]
    by_seed = [of_seed[:shared] for of_seed in by_seed]
    gaps = [[row["gap"] for row in of_seed] for of_seed in by_seed]
    usable = [i for i in range(len(times)) if all(g[i] > ROUNDING[config.dtype] for g in gaps)]
    mean = [exp(sum(log(g[i]) for g in gaps) / seeds) for i in usable]
    law = law_at_end([times[i] for i in usable], mean, floor=ROUNDING[config.dtype])
    crossings = [collapse_time(times, g, COLLAPSED) for g in gaps]
    reached = [each for each in crossings if each is not None]
    expected, why = foretell(config, scheme, start)
    path = None
    closed = config.init == "equiangular" and alike(config) and not config.causal and config.method != "layers"
    narrow = config.init == "cone" and config.delta <= NARROW and is_drawn(config) and config.rope is None
    if scheme.planar and closed:
        path = theory.solve_equiangular(scheme, config.tokens, inverse_temperature(config), times, config.layers)
    elif expected is not None and narrow and times[-1] <= config.layers:
        path = follow_drawn(config, scheme, times, sum(g[0] for g in gaps) / seeds)
    solved = {} if path is None else {k: [finite_or_none(v) for v in values] for k, values in asdict(path).items()}
    if solved:
        results.theory[name] = solved

    def at(key: str, place: int) -> float | None:
        found = [of_seed[place][key] for of_seed in by_seed if of_seed[place][key] is not None]
        return sum(found) / len(found) if found else None

    def said(key: str, place: int) -> float | None:
        return solved[key][place] if solved else None

    return {
        "scheme": name,
        "law": theory.describe_law(scheme),
        "initial_velocity": velocity,
        "initial_velocity_predicted": said("velocity", 0),
        "terminal_law": law.kind,
        "terminal_exponent": law.rate,
        "terminal_exponent_interval": None if law.rate is None else [law.low, law.high],
        "terminal_law_predicted": None if expected is None else expected.kind,
        "terminal_exponent_predicted": None if expected is None else expected.exponent,
        "terminal_law_unpredicted": why,
        "collapse_time": sum(reached) / len(reached) if len(reached) == seeds else None,
        "collapsed": len(reached),
        "time_final": times[-1],
        "cos_pair_final": at("cos_pair", -1),
        "speed_initial": at("speed", 0),
        "speed_initial_predicted": said("speed", 0),
        "speed_final": at("speed", -1),
        "speed_final_predicted": said("speed", -1),
        "radius_final": at("radius", -1),
        "radius_final_predicted": said("radius", -1),
        "radius_exponent": slope(times, [at("radius", i) for i in range(len(times))]),
    }


def slope(times: list[float], radii: list[float | None]) -> float | None:
    """q of r ~ t^q: least squares over the second half of log-time, t = time + 1. None with fewer than four points."""
    half = log1p(times[-1]) / 2
    points = [(log1p(t), log(r)) for t, r in zip(times, radii, strict=True) if r and log1p(t) >= half]
    if len(points) < 4:
        return None
    return linear_regression(*zip(*points, strict=True)).slope
