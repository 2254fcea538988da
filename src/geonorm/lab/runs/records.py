"""THE schema: what stands in summary.json, metrics.jsonl, trace.jsonl, norms.jsonl and results.json, as typed records.

`read` makes a record of an object of JSON, and `row` gives the object back. A key that a record has no field for, of a
newer version or of an experiment, stays in `more`. A field without a default is always written; one with a default is
left out where it is None. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Self, get_args, get_origin, get_type_hints

from ...parsing import finite_or_none, finite_row


@cache
def field_types(kind: type[Record]) -> dict[str, tuple[type, ...]]:
    """By field, the types that its value in a file may have. A number may be whole or not; true and false are none."""
    hints = get_type_hints(kind)
    del hints["more"]
    accepted = {}
    for name in (f.name for f in fields(kind) if f.name in hints):
        members = get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
        types = [(int, float) if member in (int, float) else (get_origin(member) or member,) for member in members]
        accepted[name] = tuple(each for member in types for each in member)
    return accepted


@dataclass(kw_only=True)
class Record:
    """A row of a file. `more` holds the keys that its class has no field for."""

    null: ClassVar[float | None] = None
    """What a null in the file stands for, where a number may stand."""

    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """The record of an object of JSON. A missing key is the default of its field, or None. ValueError where a value
        is not of its field's type."""
        types, values = field_types(cls), dict(row)  # type: ignore[arg-type]
        defaults = cls.__dataclass_fields__
        known: dict[str, Any] = {}
        for name, accepted in types.items():
            if name not in values and defaults[name].default is not MISSING:
                continue
            value = values.pop(name, None)
            if value is None and float in accepted:
                value = cls.null
            if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
                raise ValueError(f"{name} is {value!r}")
            known[name] = value
        return cls(**known, more=values)

    @classmethod
    def read_or_none(cls, row: Any) -> Self | None:
        """The record of an object of JSON; None if it is none."""
        try:
            return cls.read(row) if isinstance(row, dict) else None
        except ValueError:
            return None

    def row(self) -> dict[str, Any]:
        """The object of JSON: a number that is not finite is null."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        optional = {f.name for f in fields(self) if f.default is None}
        return finite_row({k: v for k, v in values.items() if v is not None or k not in optional} | self.more)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a column, `more` included; `default` where there is none, or it is not finite."""
        value = finite_or_none(self.more.get(name) if name in self.more else getattr(self, name, None))
        return default if value is None else value


@dataclass(kw_only=True)
class HeldOut(Record):
    """What is measured on held-out text besides its loss; None where it is not."""

    val_accuracy: float | None = None
    """Share of masked tokens that are predicted."""
    val_loss_part: float | None = None
    """val_loss on the part of the text that all evaluations share, where val_loss is of the whole."""
    val_loss_average: float | None = None
    """val_loss of the averaged weights; so the two below."""
    val_bpb_average: float | None = None
    val_accuracy_average: float | None = None
    val_tokens: int | None = None


@dataclass(kw_only=True)
class Summary(HeldOut):
    """How a run ended: summary.json.

    >>> run = Summary.read({"status": "finished", "scheme": "pre", "seed": 0, "val_loss": 3.25, "note": "by hand"})
    >>> run.val_loss, run.tokens, run.more
    (3.25, None, {'note': 'by hand'})
    """

    status: str
    """finished, diverged, interrupted; failed where it left no summary."""
    scheme: str
    seed: int | None
    steps: int | None
    """Steps made."""
    parameters: int | None
    matmul_parameters: int | None
    """Those that take part in a matrix product for every token."""
    lr: float | None
    """The highest learning rate of the schedule."""
    wall_seconds: float | None
    world_size: int | None = None
    parallel: str | None = None
    phase: str | None = None
    """tune: the run chooses a learning rate and does not count; final otherwise."""
    rates: dict[str, float] | None = None
    """Multipliers of the learning rate by role, where there are any."""
    own_recipe: dict[str, Any] | None = None
    """What the scheme's own recipe has set."""
    paper_recipe: dict[str, Any] | None = None
    """What the scheme's own recipe would set."""
    events: list[Any] | None = None
    """Steps that were rewound."""
    diagnosis: str | None
    """Why a run diverged."""
    identity: str | None = None
    """sha256 of all that decides its numbers (runs/identity.py)."""
    weights_sha256: str | None = None
    """Of a finished run: sha256 of the weights at its end, as its last checkpoint holds them; and of its rows."""
    rows_sha256: str | None = None
    tokens: int | None
    """Tokens trained on."""
    train_loss: float | None
    """Mean of the last tenth of the steps, nats a token."""
    val_loss: float | None
    """Nats a token on held-out text with the final weights; None where it is not finite or was not measured."""
    val_bpb: float | None
    """The same in bits a byte."""
    spikes: int | None
    spike_steps: list[int] | None = None
    grad_spikes: int | None
    grad_spike_steps: list[int] | None = None
    tokens_per_second: float | None
    """Median over the steps."""
    peak_memory_bytes: int | None
    run: str | None = None
    """Name of the run's folder in a comparison; below, what a comparison and a ladder add."""
    requested: bool | None = None
    """True if the last command asked for it."""
    size: str | None = None
    """Of a ladder: d4w64, depth and width."""
    depth: int | None = None
    width: int | None = None
    batch_size: int | None = None
    planned_tokens: int | None = None
    embedding: int | None = None
    """Parameters that are only looked up."""


@dataclass(kw_only=True)
class MetricRow(HeldOut):
    """A step: a row of metrics.jsonl. A number that was not finite is NaN; None is one that was not measured."""

    null = math.nan

    step: int
    tokens: int = 0
    """Trained on up to here."""
    loss: float
    """Mean over the batch, nats a token."""
    lr: float
    grad_norm: float
    """Before clipping."""
    tokens_per_second: float | None = None
    seconds: float | None = None
    """Of training up to here, without evaluations and checkpoints."""
    mfu: float | None = None
    """Share of the peak of all devices that the model's operations reach, recomputation not counted; None where the
    peak is not known, as on a CPU."""
    batch_seconds: float | None = None
    """Of the step: reading its batch; so the next two, those of forward and backward passes, and of clipping, optimizer
    and constraints. On a GPU means over the steps since the last reading, as its stream saw them."""
    model_seconds: float | None = None
    optimizer_seconds: float | None = None
    evaluation_seconds: float | None = None
    """Of the evaluation after the step."""
    checkpoint_seconds: float | None = None
    """For which a checkpoint held up the run before the step."""
    peak_memory_bytes: int | None = None
    """So far, on the first rank: of tensors on a GPU, of the whole process on a CPU."""
    val_loss: float | None = None
    val_bpb: float | None = None


@dataclass(kw_only=True)
class TraceRow(Record):
    """A sub-layer at an evaluation: a row of trace.jsonl; or a norm: a row of norms.jsonl. Means over tokens. `measure`
    measures more columns, which stand in `more`."""

    step: int | None = None
    scheme: str | None = None
    layer: int | None = None
    """0-based block."""
    kind: str | None = None
    """attn, mlp, cross or parallel."""
    t: float | None = None
    norm: str | None = None
    """Name of a norm at its place."""
    radius: float | None = None
    """Of the stream before the write."""
    radius_cv: float | None = None
    step_norm: float | None = None
    radial: float | None = None
    tangential: float | None = None
    ratio: float | None = None
    """tangential / radius."""
    ratio_p99: float | None = None
    angle: float | None = None
    """Radians between the stream before and after the write."""
    off_plane: float | None = None
    update_norm: float | None = None
    clamped: float | None = None
    """Share of tokens whose update is clamped; None for schemes without a clamp."""
    cos_ones: float | None = None
    angle_ones: float | None = None
    cos_null: float | None = None
    rotation: float | None = None
    cos_pair: float | None = None
    """Mean cosine of two tokens."""
    grad_norm: float | None = None


@dataclass(kw_only=True)
class ComparisonRow(Record):
    """A scheme at its best learning rate: a row of `schemes` in results.json. Losses are in nats a token, differences
    are scheme − baseline, intervals are 95 %."""

    scheme: str
    baseline: str
    n: int
    """Seeds at the best rate."""
    lr: float | None
    lr_interior: bool | None
    """False if the best rate is the lowest or highest that was tried; None if there was one."""
    lrs: dict[float | None, float | None]
    """Mean loss by rate."""
    val_loss_mean: float | None
    val_loss_std: float | None
    val_loss_low: float | None
    val_loss_high: float | None
    val_bpb_mean: float | None
    val_accuracy_mean: float | None
    difference: float | None
    """Paired by seed."""
    difference_low: float | None
    difference_high: float | None
    difference_std: float | None
    pairs: int
    resolved: bool
    """The paired interval leaves 0 out."""
    seeds_needed: int | None
    """To resolve a difference of this size with power 0.8."""
    p: float | None
    tokens_per_second: float | None
    peak_memory_bytes: int | None
    parameters: int | None
    matmul_parameters: int | None
    spikes: int
    grad_spikes: int
    failed: int
    """Runs without a finite loss at their end, at any rate."""
    statuses: dict[str, int]
    tokens: int | None
    moderated_difference: float | None
    """Of the means, under variances that all schemes moderate."""
    moderated_low: float | None
    moderated_high: float | None
    moderated_p: float | None
    margin: float
    equal_p: float | None
    """Of two one-sided tests that the difference is `margin` or more."""
    equal: bool | None
    p_holm: float | None
    family: str
    family_size: int

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        rates = {None if key in (None, "null") else float(key): loss for key, loss in (row.get("lrs") or {}).items()}
        return super().read({**row, "lrs": rates})
