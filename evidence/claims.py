"""Claims: selectors of runs go in, numbers and verdicts come out.

A claim compares two schemes in a setting. claims.yaml holds what is compared and the verdict that was read last, no
results. Each scheme stands at its best learning rate, chosen by the tuning seed, or at the rate that the claim names.
Differences are by seed, of crossed runs their mean. The tuning seed does not count where three other pairs remain.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from geonorm.lab.statistics.comparison import Interval, paired_interval
from geonorm.lab.statistics.moderated import Estimate, Prior, contrast, equal_p, fit_prior, holm, moderate
from geonorm.lab.statistics.synthesis import ZERO, grade, judge, pool

ROOT = Path(__file__).parents[1]
PRE_NORMS = ("pre", "pre(entry=embedding)")
CUT = 1500  # the step at which runs that were cut off are compared
PAIRS = 3
"""The tuning seed counts where fewer pairs than these remain without it."""
Values = dict[str, Any]


class ClaimError(ValueError):
    """A claim that its runs cannot answer. The message begins with the claim."""


@dataclass(frozen=True)
class Setting:
    """Runs that differ in scheme, learning rate and seed alone: those of an experiment whose names begin so."""

    experiment: str
    where: str
    runs: str = ""
    without: str = "-nogains-"
    """A pattern of names that are left out."""
    steps: int | None = None
    tuned_by: Sequence[int | str] = ()
    """The seeds that chose the rates, the first above all; mean: all seeds chose them together; none: other seeds."""
    results: str = "results.jsonl"
    text: str = "BPE of 1,024 tokens, context 128"
    """Vocabulary and context; without one, images."""
    factors: Mapping[str, str] | None = None
    """Of crossed runs, by factor a pattern that reads its level from the scheme's name. The difference of a seed is the
    mean over pairs of runs that differ in what a claim compares and share rate and all other levels."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared. A scheme, or `better`: of the two Pre-Norms the one with the lower mean."""

    scheme: str = ""
    runs: str | None = None
    setting: str = ""
    """Where that of the claim is not meant."""
    lr: float | None = None
    levels: Sequence[tuple[str, str]] = ()
    """Of crossed runs, the levels of factors that make this side."""


@dataclass(frozen=True)
class Claim:
    """A comparison. `change`: of two other claims, how far the first difference lies from the second."""

    name: str
    question: str
    status: str
    setting: str = ""
    first: Side | None = None
    second: Side | None = None
    what: str = ""
    lr: float | None = None
    measure: str = "val_loss"
    pool: str | None = None
    claimed: str = ""
    """By the authors of the scheme."""
    change: Sequence[str] = ()

    @property
    def ranks(self) -> bool:
        """True for a difference to the better Pre-Norm, each at its best rate."""
        return self.second == Side("better") and not self.lr and self.measure == "val_loss"


@dataclass
class Arm:
    """A side at its rate: losses by seed; of crossed runs by what they share, and seed."""

    lr: float
    losses: Mapping[Any, float]
    parameters: int
    tokens: int
    runs: Collection[str]

    @property
    def mean(self) -> float:
        return sum(self.losses.values()) / len(self.losses)


def read_side(words: str | Values) -> Side:
    if isinstance(words, str):
        return Side(words)
    return Side(**{**words, "levels": tuple(words.get("levels", {}).items())})


@dataclass
class Evidence:
    """The claims of a checkout and what its runs say."""

    root: Path = ROOT
    cache: dict[Path, list[Values]] = field(default_factory=dict)

    @cached_property
    def file(self) -> Values:
        return yaml.safe_load((self.root / "evidence" / "claims.yaml").read_text("utf-8"))

    @cached_property
    def settings(self) -> dict[str, Setting]:
        return {name: Setting(**words) for name, words in self.file["settings"].items()}

    @cached_property
    def claims(self) -> dict[str, Claim]:
        claims = {}
        for name, words in self.file["claims"].items():
            sides = {key: read_side(words[key]) for key in ("first", "second") if key in words}
            claims[name] = Claim(**{"name": name, **words, **sides})
        return claims

    def rows(self, setting: Setting) -> list[Values]:
        path = self.root / "experiments" / setting.experiment / setting.results
        if path not in self.cache:
            self.cache[path] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return self.cache[path]

    def runs_of(self, claim: Claim, side: Side) -> Iterator[Values]:
        setting = self.settings[side.setting or claim.setting]
        start, wanted = setting.runs if side.runs is None else side.runs, side.lr or claim.lr
        for row in self.rows(setting):
            if (
                side.scheme in ("", row["scheme"])
                and row["run"].startswith(start)
                and not re.search(setting.without, row["run"])
                and (row.get("phase") != "tune" or row["seed"] in setting.tuned_by)
                and (setting.steps or row["steps"]) == row["steps"]
                and not (wanted and abs(row["lr"] / wanted - 1) > 0.01)
            ):
                yield row

    def arm(self, claim: Claim, side: Side) -> Arm:
        """The runs of a side at its best rate: that of the matrices, with a multiplier of the embedding's where the
        name of a run has one. Crossed runs enter at every rate."""
        setting = self.settings[side.setting or claim.setting]
        rates: dict[Any, dict[Any, Values]] = {}
        diverged = set()
        for row in self.runs_of(claim, side):
            rate, pair = (re.sub(r"-seed\d+$", "", row["run"]), row["lr"]), row["seed"]
            if setting.factors is not None:
                rate, pair = ("", 0.0), read_cell(row, side, setting.factors)
            if row["status"] == "diverged" or (row["status"] == "finished" and row.get("val_loss") is None):
                diverged.add(rate)
            elif pair is not None and (row["status"] == "finished" or claim.measure == "course"):
                rates.setdefault(rate, {})[pair] = row
        rates = {rate: rows for rate, rows in rates.items() if rate not in diverged} or rates
        if not rates:
            raise ClaimError(f"{claim.name}: no run of {side.scheme} in {setting.experiment}, {setting.runs or 'all'}")
        rate = best_rate(rates, setting.tuned_by[:1])
        losses = {pair: last(row, claim.measure) for pair, row in rates[rate].items()}
        some = next(iter(rates[rate].values()))
        names = [row["run"] for row in rates[rate].values()]
        tokens = (some.get("tokens") or 0) * (CUT / some["steps"] if claim.measure == "course" else 1)
        return Arm(rate[1], losses, some.get("parameters") or 0, round(tokens), names)

    def arms(self, claim: Claim) -> tuple[Arm, Arm]:
        assert claim.first and claim.second
        return self.arm(claim, claim.first), self.arm(claim, self.opponent(claim))

    def opponent(self, claim: Claim) -> Side:
        """The second side; of `better`, the Pre-Norm that it is in this setting."""
        side = claim.second
        assert side
        if side.scheme != "better":
            return side
        pair = [Side(scheme, side.runs) for scheme in PRE_NORMS]
        return min(pair, key=lambda side: self.arm(claim, side).mean)

    def compare(self, claim: Claim) -> Values:
        """Differences by seed and what they were made of."""
        if claim.change:
            one, two = (self.claims[name] for name in claim.change)
            known, other = self.differences(one), self.differences(two)
            pairs = {seed: known[seed] - other[seed] for seed in sorted(known.keys() & other.keys())}
            claim = one
        else:
            pairs = self.differences(claim)
        if not pairs:
            raise ClaimError(f"{claim.name}: no seed has both schemes")
        first, second = self.arms(claim)
        tuners = self.settings[claim.setting].tuned_by
        fresh = {seed: gap for seed, gap in pairs.items() if seed not in tuners}
        counted = fresh if len(fresh) >= PAIRS else pairs
        return {
            "pairs": counted,
            "lr": [first.lr, second.lr],
            "parameters": first.parameters,
            "tokens": first.tokens,
            "tuning_seed_counts": not claim.lr and any(seed == "mean" or seed in counted for seed in tuners),
        }

    def differences(self, claim: Claim) -> dict[int, float]:
        """By seed that has both, the tuning seed included; of crossed runs the mean over those of the seed."""
        first, second = self.arms(claim)
        crossed = self.settings[claim.setting].factors is not None
        gaps: dict[int, list[float]] = {}
        for pair in sorted(first.losses.keys() & second.losses.keys()):
            gaps.setdefault(pair[1] if crossed else pair, []).append(first.losses[pair] - second.losses[pair])
        return {seed: sum(each) / len(each) for seed, each in gaps.items()}

    @cached_property
    def registered(self) -> dict[str, str]:
        """By claim that was predicted, the commit of the prediction; all others were looked at after the runs."""
        commits = self.file["registered"]
        return {words["claim"]: words.get("in", commits[words["experiment"]]) for words in self.file["predictions"]}

    @cached_property
    def results(self) -> dict[str, Values]:
        """By claim: mean, interval, p, by Holm too, the moderated error, p of equality, and the verdict. Variances are
        moderated within an experiment. Its comparisons by one measure, and others that it registered, are a family."""
        raw = {name: self.compare(claim) for name, claim in self.claims.items()}
        gaps = {name: paired_interval(list(values["pairs"].values())) for name, values in raw.items()}
        priors: dict[str, Prior | None] = {}
        p_holm: dict[str, float | None] = {}
        for names in self.groups(lambda claim: (self.place(claim).experiment,)):
            known = [gaps[name] for name in names if gaps[name].std is not None]
            prior = fit_prior([(gap.std or 0.0) ** 2 for gap in known], [gap.n - 1 for gap in known])
            priors |= dict.fromkeys(names, prior)
        for names in self.groups(lambda claim: (self.place(claim).experiment, claim.measure)):
            tests = {tuple(raw[name]["pairs"].items()): gaps[name].p for name in names if gaps[name].p is not None}
            registered = self.file["families"].get(self.place(self.claims[names[0]]).experiment, 0)
            others = [1.0] * (registered - len(tests))
            adjusted = dict(zip(tests, holm([*tests.values(), *others]), strict=False))
            p_holm |= {name: adjusted.get(tuple(raw[name]["pairs"].items())) for name in names}
        return {
            name: summarize(gap, priors[name])
            | {"p_holm": p_holm[name], **raw[name], "registered": self.registered.get(name)}
            for name, gap in gaps.items()
        }

    def place(self, claim: Claim) -> Setting:
        """The setting of a claim; of a change, that of its first."""
        return self.settings[claim.setting or self.claims[claim.change[0]].setting]

    def groups(self, key: Callable[[Claim], tuple[str, ...]]) -> Collection[list[str]]:
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, claim in self.claims.items():
            groups.setdefault(key(claim), []).append(name)
        return groups.values()

    @cached_property
    def pools(self) -> dict[str, Values]:
        """By pool: the random-effects mean of its claims, with the moderated error of each. No run that chose a rate
        enters, so that the tuning seed never counts."""
        return {name: self.pooled(name, words) for name, words in self.file["pools"].items()}

    def pooled(self, name: str, words: Values) -> Values:
        members = {claim.name: claim for claim in self.claims.values() if claim.pool == name}
        if len({(one.first and one.first.scheme, one.second and one.second.scheme) for one in members.values()}) > 1:
            raise ClaimError(f"{name}: a pool has one comparison")
        effects = []
        for member, claim in members.items():
            row, tuners = self.results[member], self.place(claim).tuned_by
            fresh = [gap for seed, gap in row["pairs"].items() if seed not in tuners]
            if "mean" in tuners or not fresh:
                raise ClaimError(f"{member}: a pool holds no run that chose the rate")
            effects.append(Estimate(sum(fresh) / len(fresh), row["moderated_error"] ** 2 * row["n"] / len(fresh), 1))
        total = pool(effects)
        if not total:
            raise ClaimError(f"{name}: a pool of fewer than two settings")
        mean = total.mean
        return {
            "verdict": judge(mean, words["margin"]),
            "mean": mean.difference,
            "low": mean.low,
            "high": mean.high,
            "between": total.between,
            "expected_low": total.low,
            "expected_high": total.high,
            "n": total.n,
            "doubts": grade(total, words["margin"], words.get("doubts", ()))[1],
            "claims": [*members],
        }


def summarize(gap: Interval, prior: Prior | None) -> Values:
    """A paired difference: its verdict and interval by its own pairs, and its error by a moderated variance."""
    own, variance, df = None, (gap.std or 0.0) ** 2, float(gap.n - 1)
    if gap.std is not None:
        own = contrast(Estimate(gap.mean, variance / gap.n, df), ZERO)
    if prior:
        variance, df = moderate(variance, df, prior)
    shared = contrast(Estimate(gap.mean, variance / gap.n, df), ZERO) if variance else None
    return {
        "verdict": judge(own),
        "mean": gap.mean,
        "low": gap.low,
        "high": gap.high,
        "n": gap.n,
        "p": gap.p,
        "equal_p": equal_p(own) if own else None,
        "moderated_error": shared and shared.error,
    }


def read_cell(row: Values, side: Side, factors: Mapping[str, str]) -> tuple[str, int] | None:
    """What a crossed run shares with its partner, and its seed; None where it is not of this side."""
    found = {factor: re.search(pattern, row["scheme"]) for factor, pattern in factors.items()}
    levels = {factor: match[1] for factor, match in found.items() if match}
    wanted = dict(side.levels)
    if len(levels) < len(factors) or any(levels[factor] != level for factor, level in wanted.items()):
        return None
    rest = [level or "none" for factor, level in levels.items() if factor not in wanted]
    return ", ".join([*rest, f"rate {row['lr']:g}"]), row["seed"]


def best_rate(rates: Mapping[Any, Mapping[Any, Values]], tuned_by: Sequence[int | str]) -> Any:
    """Of the rates with three seeds, or as many as any has: the best of the tuning seed, else of the mean of all."""
    enough = min(PAIRS, max(map(len, rates.values())))
    several = {lr: rows for lr, rows in rates.items() if len(rows) >= enough}
    tuned = {lr: row["val_loss"] for lr, rows in several.items() for seed, row in rows.items() if seed in tuned_by}
    if tuned:
        return min(tuned, key=tuned.__getitem__)
    most = max(map(len, several.values()))
    full = {lr: list(rows.values()) for lr, rows in several.items() if len(rows) == most}
    return min(full, key=lambda lr: sum(row.get("val_loss") or 0.0 for row in full[lr]))


def last(row: Values, measure: str) -> float:
    """The loss of a run. course: of a run that was cut off, at step CUT. train: of its last 500 steps."""
    if measure == "train":
        return float(row["train"][-1][1])
    return float(dict(row["course"])[CUT] if measure == "course" else row[measure])


def plain(values: Any) -> Any:
    """As results.json has it: six decimals, keys of text."""
    if isinstance(values, dict):
        return {str(key): plain(value) for key, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [plain(value) for value in values]
    return round(values, 6) if isinstance(values, float) and math.isfinite(values) else values


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=2e-6)
    return one == other
