"""Probes of models on text: `geonorm probe` and geonorm.probe.

DIR/config.yaml  environment.json  trace.jsonl  norms.jsonl  [ablation.jsonl]  [layers.jsonl]
summary.json  report.html  figures/
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import accumulate, count
from operator import itemgetter
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..devices import pick_device
from ..errors import CheckpointError, ConfigError
from ..measure import load
from ..measure.anatomy import Stack
from ..measure.config import ProbeConfig, check_norms_only
from ..measure.metrics import pool_spreads
from ..measure.schedule import implied
from ..measure.subject import Inputs, Subject, ablation, given_batches, measure_gradients
from ..parsing import finite_row
from ..results import Result, Rows
from ..schemes import parse
from .config import TrainConfig
from .data import open_source
from .open import encode_running, read_settings, run_of
from .probe_inputs import WINDOWS, beginning, find_images, open_probed, read_data, text, vocabulary
from .runs import environment
from .runs.folder import check_writable, first_difference, is_unused, stored_settings
from .simulate import save

Told = Callable[[str, float], None]
ABLATION_TOKENS = 4096
"""The depth use is measured on the first batches that have as many."""
VOLATILE = ("out", "device", "batch")
"""Settings under which a probe measures the same, the batch unless something is measured on the first batches alone."""
OPTIONAL = {"ablation.jsonl": "ablation", "layers.jsonl": "layers"}
"""Files that are there only where something was measured for them, and what they hold of a Probe."""


@dataclass(frozen=True, repr=False)
class Probe(Result):
    """What was measured of one model. Rows are dictionaries: probe.frame("norms") is a table of them.

    sites: one row per residual site (columns of trace.jsonl); norms: one per norm; schedule: laws of the implied step
    size by stack and kind of site; layers: likeness of depths; ablation: rows of the depth use; loss: of the
    whole model on those tokens, in nats.
    """

    name: str
    tokens: int
    seconds: float
    about: dict[str, Any] = field(default_factory=dict)
    sites: list[dict[str, Any]] = field(default_factory=list)
    norms: list[dict[str, Any]] = field(default_factory=list)
    schedule: dict[str, Any] = field(default_factory=dict)
    ablation: list[dict[str, Any]] = field(default_factory=list)
    loss: float | None = None
    layers: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        """A line: the rows themselves are hundreds of numbers each."""
        counts = ", ".join(
            f"{len(rows)} {name}"
            for name, rows in (("sites", self.sites), ("norms", self.norms), ("ablation rows", self.ablation))
            if rows
        )
        laws = [kinds["all"]["best"] for kinds in self.schedule.values() if kinds and kinds.get("all")]
        law = f", step law {' / '.join(laws)}" if laws else ""
        return f"Probe({self.name!r}, {self.tokens:,} tokens, {counts or 'no rows'}{law}, {self.seconds:.1f} s)"

    def tables(self) -> dict[str, Rows]:
        return {"sites": self.sites, "norms": self.norms, "ablation": self.ablation, "layers": self.layers}

    def files(self) -> dict[str, Any]:
        return probe_files([self])

    def summary(self) -> dict[str, Any]:
        """The model in summary.json."""
        found = {
            "model": self.name, **self.about, "tokens": self.tokens, "seconds": self.seconds, "sites": len(self.sites),
            "norms": len(self.norms), "schedule": self.schedule,
            "norm_spread": pool_spreads(self.norms), "loss": self.loss,
        }  # fmt: skip
        if single := [row for row in self.ablation if row["blocks"] == 1]:
            # of the loss that single blocks are worth: near 0, depth is not used
            total, depths = sum(row["increase"] for row in single), Counter(row["stack"] for row in single)
            late = sum(row["increase"] for row in single if row["first"] >= depths[row["stack"]] / 2)
            found["second_half_share"] = late / total if total > 0 else None
        return found


def probe(
    model: str | nn.Module,
    data: str | Tensor | Inputs | Iterable[Tensor | Inputs] = "stdlib",
    *,
    tokenizer: Any = None,
    tokens: int = 32768,
    context: int = 512,
    batch: int | None = None,
    gradients: bool = False,
    ablate_blocks: bool = False,
    bos: bool = False,
    stacks: Sequence[Stack] | None = None,
    sites: bool = True,
    scheme: str | None = None,
    device: str = "auto",
    name: str | None = None,
    progress: Told | None = None,
) -> Probe:
    """Measures the hidden states of a model; nothing is written.

        found = geonorm.probe("runs/geonorm", "my.txt")
        found = geonorm.probe(model, ids)                       # a model in memory, ids (batch, tokens)
        found = geonorm.probe(vit, {"pixel_values": images})    # keyword arguments of its forward pass
        [row["ratio"] for row in found.sites if row["kind"] == "mlp"]

    model: a run of ours, a Hugging Face directory or hub name, or a module: our Decoder, a transformers model, or with
    sites=False any module with LayerNorm or RMSNorm. data: text as for --data (a model in memory needs `tokenizer`, a
    transformers one), ids, keyword arguments (attention_mask marks padding), or several of these. stacks: sites by hand
    (anatomy.Stack.by_hand). bos: windows of text begin with the token that begins a text. scheme: with a comparison's
    folder, its best finished run of that scheme. batch: windows of a pass, 8, or images, as many as are 4,096 tokens. A
    model in memory stays on its device. Raises ConfigError or DataError with one line.
    """
    batches: Sequence[Any]
    asked: Sequence[Inputs | Tensor] | None = None
    if not sites:
        check_norms_only(gradients, ablate_blocks, by_hand=stacks is not None)
    if not isinstance(model, str | nn.Module):
        raise ConfigError(f"a model is a folder or hub name, or a torch module, not {type(model).__name__}")
    if isinstance(model, str):
        config = ProbeConfig(
            [model], tokens=tokens, context=context, batch=batch, bos=bos, device=device, gradients=gradients,
            ablate_blocks=ablate_blocks,
        )  # fmt: skip
        opened = open_probed(run_of(model, scheme), config)
        subject, name = Subject(opened.model, stacks, sites=sites), name or opened.name
        if isinstance(data, str):
            batches, asked = read_data(opened, subject, data, config)
    else:
        subject, name = Subject(model, stacks, sites=sites), name or type(model).__name__
        if isinstance(data, str):
            if tokenizer is None:
                raise ConfigError("a model in memory needs its tokenizer to read text: tokenizer=..., or give ids")
            begin = beginning(tokenizer, name) if bos else None
            encode = partial(encode_running, tokenizer)
            own = getattr(model, "config", None)
            longest = getattr(own, "context", None) or load.context_of(own)
            context = min(context, longest or context)
            batches = text(data, encode, tokens, context, vocabulary(subject), begin).split(batch or WINDOWS)
    if not isinstance(data, str):
        batches = given_batches(data)
    return measure_model(
        subject, name, batches, asked, gradients=gradients, ablate_blocks=ablate_blocks, progress=progress,
    )  # fmt: skip


def measure_model(
    subject: Subject,
    name: str,
    batches: Sequence[Tensor | Inputs],
    asked: Sequence[Tensor | Inputs] | None,
    *,
    gradients: bool,
    ablate_blocks: bool,
    progress: Told | None,
) -> Probe:
    """batches: what hidden states are measured on; asked: what losses are, where that is something else."""
    started = time.perf_counter()
    asked = batches if asked is None else asked
    told = progress or (lambda what, share: None)
    if not batches:
        raise ConfigError("no data: give at least one batch")
    done = count(1)
    tokens = subject.measure(batches, lambda _: told(name, next(done) / len(batches)))
    if not tokens:
        raise ConfigError("no token is counted: the attention mask is 0 everywhere")
    sites, norms = subject.capture.rows(), subject.capture.norm_rows()
    if not sites and not norms:
        raise ConfigError("no norm reads tokens as the attention mask has them; probe without padding")
    if gradients:
        found = {
            (stack, site.layer, site.kind): row for (stack, site), row in measure_gradients(subject, asked[0]).items()
        }
        for row in sites:  # not of every place: attention to a second stack may never have run
            row.update(found[row["stack"], row["layer"], row["kind"]])
    known = (isinstance(batch, Tensor) or "pixel_values" in batch for batch in batches)
    sizes = (subject.size(batch) if counted else ABLATION_TOKENS for batch, counted in zip(batches, known, strict=True))
    most = next((i for i, size in enumerate(accumulate(sizes), start=1) if size >= ABLATION_TOKENS), len(batches))
    some, loss, ablated = asked[:most], None, list[dict[str, Any]]()
    if ablate_blocks:
        loss, ablated = ablation(subject, some, lambda share: told(f"{name}: without blocks", share))
    place = itemgetter("stack", "layer", "kind")
    rotations: dict[Any, Any] = {}
    for norm in {row["norm"]: row for row in norms}.values():
        rotations.setdefault(place(norm), norm.get("rotation"))
    for row in sites:
        row["rotation"] = rotations.get(place(row))
        row.setdefault("grad_norm", None)
    about = {
        "class": type(subject.model).__name__,
        "model_type": getattr(subject.config, "model_type", None),
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "scheme": scheme_of(subject, sites),
        "depth": sites[0]["depth"] if sites else None,
    }
    seconds = time.perf_counter() - started
    laws, layers = implied(sites), subject.capture.layer_rows()
    return Probe(name, tokens, seconds, about, sites, norms, laws, ablated, loss, layers)


def scheme_of(subject: Subject, sites: Sequence[Mapping[str, Any]]) -> str | None:
    """The one that the model names, as of a combinator each site has a part alone; else that of all sites; None where
    there is neither."""
    named = getattr(getattr(subject.model, "config", None), "scheme", None)
    own, *others = {row["scheme"] for row in sites} or {None}
    return str(parse(named)) if isinstance(named, str) else own if not others else None


def probe_models(config: ProbeConfig, progress: Told | None = None) -> list[Probe]:
    """Probes every model of a command and writes its directory. Nothing is written before all of them are measured.
    CheckpointError if that cannot be written or holds something else, another probe too."""
    out = Path(config.out)
    check_writable(out)
    probed = (out / "norms.jsonl").exists() and not (out / "metrics.jsonl").exists()  # a run has norms too
    if not probed and not is_unused(out):
        raise CheckpointError(f"{out} is not empty and holds no probe; choose another --out")
    if probed:
        before = stored_settings(out)
        first = config.gradients or config.ablate_blocks
        but = [name for name in VOLATILE if name != "batch" or not first]
        if differs := first_difference(before, asdict(config), but):
            raise CheckpointError(f"{out} holds a probe with {differs}; choose another --out")
    models = [run_of(name, config.scheme) for name in config.models]
    check_different(models)
    kinds = set[bool]()
    for name in models:  # what can be known to be wrong without loading is known first
        known = read_settings(name, causal=False, revision=config.revision, trust_remote_code=config.trust_remote_code)
        kinds.add(not isinstance(known, TrainConfig) and load.tells_images(known))
    if len(kinds) > 1:
        raise ConfigError("some of these models read images, others text: probe them apart")
    find_images(config.data) if kinds == {True} else open_source(config.data)
    found = []
    for name, label in zip(models, short_names(models), strict=True):
        opened = open_probed(name, config)
        subject = Subject(opened.model, config.stacks(), sites=not config.norms_only)
        batches, asked = read_data(opened, subject, config.data, config)
        found.append(
            measure_model(
                subject, label, batches, asked, gradients=config.gradients, ablate_blocks=config.ablate_blocks,
                progress=progress,
            )
        )  # fmt: skip
        del opened, subject
    files = probe_files(found, config.data)
    described = environment.collect(pick_device(config.device))
    described["transformers"] = environment.installed_version("transformers")
    save(out, asdict(config), described, files)
    return found


def check_different(models: Sequence[str]) -> None:
    """ConfigError for a model that is named twice, in whatever way: its rows would stand twice under one name."""
    known: dict[str, str] = {}
    for name in models:
        place = str(Path(name).resolve()) if Path(name).exists() else name
        if place in known:
            raise ConfigError(f"{name} is {known[place]} once more: name each model once")
        known[place] = name


def short_names(models: Sequence[str]) -> list[str]:
    """Short names that tell models apart: the last part of a path, or all of it where two have the same."""
    short = [Path(name).name or name for name in models]
    return [name if short.count(one) > 1 or not one else one for name, one in zip(models, short, strict=True)]


def probe_files(found: Sequence[Probe], data: str | None = None) -> dict[str, Any]:
    """Content of the files of a probe's folder, by name."""
    named = {"trace.jsonl": "sites", "norms.jsonl": "norms", **OPTIONAL}
    files: dict[str, Any] = {
        file: [{"model": one.name, **finite_row(row)} for one in found for row in getattr(one, rows)]
        for file, rows in named.items()
        if file not in OPTIONAL or any(getattr(one, rows) for one in found)
    }
    summaries = [one.summary() for one in found]
    return files | {"summary.json": {"kind": "probe", "status": "finished", "data": data, "models": summaries}}
