"""The coordinate check of residual schemes, `geonorm check-transfer` (docs/theory-depth.md).

Small decoders under a scheme take 1, 4 and 16 steps of Adam on random tokens, with hidden matrices alone learning. The
*turn* is the mean angle between the final state (what the head reads) before and after. At a small rate it is

    turn = lr width C sum phi,

with phi the angle by which a sub-layer turns a token, and C the coherence of the sub-layers' contributions. That the
best rate falls as the turn grows was a prediction, which experiment 023 did not bear out.

DIR/rows.jsonl  summary.json  config.yaml  environment.json  report.html  figures/
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import exp, log
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .. import sphere
from ..errors import ConfigError
from ..measure.observe import ModelSite, watch
from ..models.config import DecoderConfig
from ..models.decoder import Decoder
from ..models.init import ROLES
from ..schemes import parse
from .runs import environment
from .runs.folder import check_out_folder, read_object
from .statistics.comparison import paired_interval
from .study_folder import describe_sources, save
from .transfer_config import HEAD_WIDTH, TransferConfig

STEPS = (1, 4, 16)
"""Optimizer steps after which the turn is measured; predictions are from the first."""
BATCH, CONTEXT, VOCABULARY = 8, 32, 256
Row = dict[str, Any]
Progress = Callable[[str, float], None]


def check_transfer(config: TransferConfig, progress: Progress = lambda scheme, share: None) -> dict[str, Any]:
    """Measures every scheme at every size and writes the folder; returns the summary. ConfigError for an unknown
    scheme, CheckpointError for a folder that cannot be written or holds something else."""
    out = Path(config.out)
    check_out_folder(out, "check of transfer", read_object(out / "summary.json").get("kind") == "transfer")
    schemes = list(dict.fromkeys(str(parse(scheme)) for scheme in config.schemes))
    sizes = dict.fromkeys(size for along in config.axes.values() for size in along)
    runs = [(*size, seed) for size in sizes for seed in range(config.seeds)]
    rows: list[Row] = []
    results = []
    for scheme in schemes:
        measured: list[Row] = []
        for number, (depth, width, seed) in enumerate(runs, 1):
            measured += measure_step_turns(scheme, depth, width, seed, config.lr)
            progress(scheme, number / len(runs))
        rows += measured
        results.append(summarize_turns(config, scheme, measured))
    summary = {"kind": "transfer", **asdict(config), "schemes": results}
    described = environment.collect(torch.device("cpu")) | {"schemes": describe_sources(schemes)}
    save(out, asdict(config), described, {"rows.jsonl": rows, "summary.json": summary})
    return summary


def measure_step_turns(scheme: str, depth: int, width: int, seed: int, lr: float) -> list[Row]:
    """A row for each of STEPS: turn, path (the sum of mean angles of sub-layers at initialization), coherence C."""
    torch.manual_seed(seed)
    shape = {"layers": depth, "width": width, "heads": width // HEAD_WIDTH}
    model = Decoder(DecoderConfig(scheme=scheme, vocab_size=VOCABULARY, context=CONTEXT, **shape))  # type: ignore[arg-type]
    hidden = [weight for role, weight, _, _ in model.weights() if not ROLES[role].end]
    # eps far below any gradient: the first step is lr times a sign, at every depth
    adam = torch.optim.Adam(hidden, lr=lr, betas=(0.9, 0.95), eps=1e-20)
    batches = torch.randint(VOCABULARY, (max(STEPS), BATCH, CONTEXT + 1))
    angles: list[float] = []

    def add_angle(place: ModelSite, x: Tensor, _: Tensor, after: Tensor) -> None:
        angles.append(mean_angle(place.seen(x), place.seen(after)))

    with watch(model, add_angle):
        before = final_state(model, batches[0])
    if (path := sum(angles)) == 0:
        raise ConfigError(f"{scheme} turns no token at initialization: nothing is known of its rate before it learns")
    rows = []
    for step, batch in enumerate(batches, 1):
        adam.zero_grad()
        cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        adam.step()
        model.constrain()
        if step in STEPS:
            turn = mean_angle(before, final_state(model, batches[0]))
            size = {"scheme": scheme, "depth": depth, "width": width, "seed": seed, "steps": step}
            rows.append({**size, "turn": turn, "path": path, "coherence": turn / (lr * width * path)})
    return rows


@torch.no_grad()
def final_state(model: Decoder, batch: Tensor) -> Tensor:
    """What the head reads, in fp64."""
    x, turns = model.begin(batch[:, :-1])
    state: Tensor = model.exit(model.run_blocks(model.entry(x), turns))
    return state.double()


def mean_angle(x: Tensor, y: Tensor) -> float:
    """Mean angle between tokens x and y (..., dim), in radians."""
    along, across = sphere.frame(x.detach().double(), y.detach().double())
    return torch.atan2(sphere.radius(across), along * sphere.radius(x)).mean().item()


def summarize_turns(config: TransferConfig, scheme: str, rows: Sequence[Row]) -> Row:
    """For each axis: a row per size with the mean turn, path and coherence of one step and the ratios of turns to the
    base model's, by number of steps; exponents of the turn; a finding for each axis. Intervals are of 95 %, over
    seeds."""
    cells = {(row["depth"], row["width"], row["steps"], row["seed"]): row for row in rows}
    seeds = range(config.seeds)

    def log_ratio(size: tuple[int, int], steps: int, seed: int) -> float:
        base = cells[config.depth, config.width, steps, seed]
        return log(cells[*size, steps, seed]["turn"] / base["turn"])

    result: Row = {"scheme": scheme, "exponents": {}, "findings": []}
    for axis, sizes in config.axes.items():
        result[axis] = []
        for size in sizes:
            ratios = {f"ratio_{steps}": mean_interval([log_ratio(size, steps, seed) for seed in seeds], exp)
                      for steps in STEPS}  # fmt: skip
            means = {key: fmean(cells[*size, 1, seed][key] for seed in seeds) for key in ("turn", "path", "coherence")}
            result[axis].append({"depth": size[0], "width": size[1], **means, **ratios})
        if len(sizes) > 1:
            at = [log(row[axis]) for row in result[axis]]
            result["exponents"][axis] = {
                str(steps): mean_interval(
                    [linear_regression(at, [log_ratio(size, steps, seed) for size in sizes]).slope for seed in seeds]
                )
                for steps in STEPS
            }
            base = getattr(config, axis)
            farthest = max(result[axis], key=lambda row: abs(log(row[axis] / base)))
            result["findings"].append(describe_farthest(axis, farthest, base, result["exponents"][axis]["1"]))
    return result


def mean_interval(values: Sequence[float], scale: Callable[[float], float] = float) -> list[float | None]:
    """[mean, low, high] of values with their 95 % interval, each number mapped by `scale`."""
    return [None if number is None else scale(number) for number in paired_interval(values)[:3]]


def describe_farthest(axis: str, row: Row, base: int, exponent: Sequence[float]) -> str:
    """What was measured at a size, and which rate, or over depth which angles, would keep the turn."""
    ratio, low, high = row["ratio_1"]
    at, start = (f"{size} blocks" if axis == "depth" else f"width {size}" for size in (row[axis], base))
    angles = " or the angle of every sub-layer" if axis == "depth" else ""
    return (
        f"From {start} to {at} one step turns the final state {ratio:.3g} times as far ({low:.3g} to {high:.3g}), "
        f"about {axis}^{exponent[0]:.2f} ({exponent[1]:.2f} to {exponent[2]:.2f}); to keep the turn, multiply the "
        f"learning rate of matrices{angles} by {1 / ratio:.3g}."
    )
