"""Probes of models on text: `geonorm probe` and geonorm.probe.

A model is opened and its data become batches (`probe_inputs`), the batches run under hooks (`measure_model`), the
measures become the rows of a `ProbeResult`, and these the files of a folder (`probe_files`):

DIR/config.yaml  environment.json  trace.jsonl  norms.jsonl  [ablation.jsonl]
summary.json  report.html  figures/
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..devices import pick_device
from ..errors import ConfigError, require
from ..measure.ablation import ablation
from ..measure.config import ProbeConfig
from ..measure.load import context_of
from ..measure.metrics import pool_spreads
from ..measure.probe import Inputs, ProbedModel, first_not_finite
from ..measure.schedule import implied
from ..parsing import finite_row
from ..results import Result, Rows
from ..schemes import parse
from .load import LINES
from .open import Opened, read_settings, run_of
from .probe_inputs import open_probed, read_data
from .runs import environment
from .study_folder import check_directory, save

Progress = Callable[[str, float], None]
ABLATION_TOKENS = 4096
"""Tokens of the first batches on which the loss without blocks is measured."""


@dataclass(frozen=True, repr=False)
class ProbeResult(Result):
    """The measures of one model.

    sites: one row per sub-layer (columns of trace.jsonl); norms: one per norm; schedule: laws of the implied step size
    by stack and kind of sub-layer; ablation: the loss without blocks; loss: of the whole
    model on the same tokens, in nats. `frame("norms")` is a table of rows, `plot()` a figure of the report.

    >>> import torch, geonorm
    >>> model = geonorm.Decoder(geonorm.DecoderConfig(scheme="geonorm", layers=2, width=8, heads=2, vocab_size=5))
    >>> result = geonorm.probe(model, torch.tensor([[0, 1, 2, 3]]))
    >>> [(row["layer"], row["kind"]) for row in result.sites]
    [(0, 'attn'), (0, 'mlp'), (1, 'attn'), (1, 'mlp')]
    >>> all(abs(row["radius_after"] - row["radius"]) < 1e-5 for row in result.sites)  # GeoNorm rotates the stream
    True
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

    @property
    def not_finite(self) -> str | None:
        """The first sub-layer after which the stream holds NaN or infinity, or the embedding before the first; None
        where there is none."""
        return first_not_finite(self.sites)

    def __repr__(self) -> str:
        """A line: the rows themselves are hundreds of numbers each."""
        counts = ", ".join(f"{len(rows)} rows of {name}" for name, rows in self.tables().items() if rows)
        broken = f", not finite from {self.not_finite} on" if self.not_finite else ""
        return f"ProbeResult({self.name!r}, {self.tokens:,} tokens, {counts or 'no rows'}{broken})"

    def tables(self) -> dict[str, Rows]:
        return {"sites": self.sites, "norms": self.norms, "ablation": self.ablation}

    def files(self) -> dict[str, Any]:
        return probe_files([self])

    def summary(self) -> dict[str, Any]:
        """The model in summary.json."""
        row = {
            "model": self.name, **self.about, "tokens": self.tokens, "seconds": self.seconds, "sites": len(self.sites),
            "norms": len(self.norms), "schedule": self.schedule,
            "norm_spread": pool_spreads(self.norms), "loss": self.loss,
        }  # fmt: skip
        if self.not_finite:
            row["not_finite"] = self.not_finite
        if single := [row for row in self.ablation if row["blocks"] == 1]:
            # of the loss that single blocks are worth: near 0, depth is not used
            total, depths = sum(row["increase"] for row in single), Counter(row["stack"] for row in single)
            late = sum(row["increase"] for row in single if row["first"] >= depths[row["stack"]] / 2)
            row["second_half_share"] = late / total if total > 0 else None
        return finite_row(row)


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
    sites: bool = True,
    scheme: str | None = None,
    device: str = "auto",
    name: str | None = None,
    progress: Progress | None = None,
) -> ProbeResult:
    """Measures the hidden states of a model; nothing is written.

    model: a run of ours, a Hugging Face directory or hub name, or a module: our Decoder, a transformers model, or with
    sites=False any module with LayerNorm or RMSNorm. data: text as for --data (a model in memory needs `tokenizer`, a
    transformers one), ids (batch, tokens), keyword arguments of a forward pass (attention_mask marks padding), or
    several of these. bos: windows of text begin with the token that begins a text. scheme: with a comparison's folder,
    its best finished run of that scheme. batch: windows of a pass, 8 by default. A model in memory stays on its
    device. Raises ConfigError or DataError with one line.

    >>> import torch, geonorm
    >>> model = geonorm.Decoder(geonorm.DecoderConfig(scheme="pre", layers=2, width=8, heads=2, vocab_size=5))
    >>> result = geonorm.probe(model, torch.tensor([[0, 1, 2, 3]]))
    >>> result
    ProbeResult('Decoder', 4 tokens, 4 rows of sites, 6 rows of norms)
    """
    config = ProbeConfig(
        [model if isinstance(model, str) else "module"], tokens=tokens, context=context, batch=batch, bos=bos,
        device=device, gradients=gradients, ablate_blocks=ablate_blocks, norms_only=not sites,
    )  # fmt: skip
    if isinstance(model, str):
        opened = open_probed(run_of(model, scheme), config)
    elif isinstance(model, nn.Module):
        settings = getattr(model, "config", None)
        longest = getattr(settings, "context", None) or context_of(settings)
        opened = Opened(type(model).__name__, model, tokenizer, longest, torch.device("cpu"))
    else:
        raise ConfigError(f"a model is a folder or hub name, or a torch module, not {type(model).__name__}")
    probed = ProbedModel(opened.model, sites=sites)
    if isinstance(data, str):
        batches, loss_batches = read_data(opened, data, config)
    else:
        batches = loss_batches = list_batches(data)
    return measure_model(
        probed, name or opened.name, batches, loss_batches, config, progress, getattr(opened, "step", None)
    )


def probe_models(config: ProbeConfig, progress: Progress | None = None) -> list[ProbeResult]:
    """Probes every model of a command and writes its directory. Nothing is written before all of them are measured.
    CheckpointError if that cannot be written or holds something else, another probe too."""
    out = Path(config.out)
    check_directory(out, asdict(config), "probe", "models")
    models = [run_of(name, config.scheme) for name in config.models]
    for name in models:  # a wrong name is an error before minutes of work on the others
        read_settings(name, causal=False, revision=config.revision, trust_remote_code=config.trust_remote_code)
    results = []
    for name, label in zip(models, short_names(models), strict=True):
        opened = open_probed(name, config)
        probed = ProbedModel(opened.model, sites=not config.norms_only)
        batches, loss_batches = read_data(opened, config.data, config)
        results.append(
            measure_model(probed, label, batches, loss_batches, config, progress, getattr(opened, "step", None))
        )
        del opened, probed
    machine = environment.collect(pick_device(config.device))
    machine["transformers"] = environment.installed_version("transformers")
    save(out, asdict(config), machine, probe_files(results, config.data))
    return results


def measure_model(
    probed: ProbedModel,
    name: str,
    batches: Sequence[Tensor | Inputs],
    loss_batches: Sequence[Tensor | Inputs],
    config: ProbeConfig,
    progress: Progress | None,
    step: int | None = None,
) -> ProbeResult:
    """Runs the batches under the hooks. loss_batches: the same with labels, where a loss is of labels. step: of the run
    whose weights these are."""
    started = time.perf_counter()
    report = progress or (lambda what, share: None)
    require(batches, "no data: give at least one batch")
    tokens = probed.measure(batches, lambda done: report(name, done / len(batches)))
    require(tokens[-1], "no token is counted: the attention mask is 0 everywhere")
    sites, norms = probed.capture.rows(), probed.capture.norm_rows()
    place = itemgetter("stack", "layer", "kind")
    rotations = {place(row): row["rotation"] for row in reversed(norms)}  # of the first norm of each sub-layer
    gradients = probed.gradients(loss_batches[0]) if config.gradients else {}
    by_place = {(stack, site.layer, site.kind): lengths for (stack, site), lengths in gradients.items()}
    for row in sites:
        row["rotation"] = rotations.get(place(row))
        row.update(by_place.get(place(row), {"grad_norm": None}))
    loss, ablated = None, list[dict[str, Any]]()
    if config.ablate_blocks:
        enough = next((i for i, count in enumerate(tokens, 1) if count >= ABLATION_TOKENS), len(batches))
        loss, ablated = ablation(
            probed, loss_batches[:enough], lambda share: report(f"{name}: without blocks", share)
        )  # fmt: skip
    about = {
        "class": type(probed.model).__name__,
        "model_type": getattr(probed.config, "model_type", None),
        "parameters": sum(p.numel() for p in probed.model.parameters()),
        "scheme": probed_scheme(probed, sites),
        "depth": sites[0]["depth"] if sites else None,
        "step": step,
    }
    seconds = time.perf_counter() - started
    return ProbeResult(name, tokens[-1], seconds, about, sites, norms, implied(sites), ablated, loss)


def probed_scheme(probed: ProbedModel, sites: Sequence[Mapping[str, Any]]) -> str | None:
    """The scheme in the model's configuration, because under a combinator each sub-layer has only a part of it; else
    the scheme that all sub-layers share; None where there is neither."""
    named = getattr(getattr(probed.model, "config", None), "scheme", None)
    if isinstance(named, str):
        return str(parse(named))
    schemes = {row["scheme"] for row in sites}
    return schemes.pop() if len(schemes) == 1 else None


def list_batches(data: Any) -> list[Tensor | Inputs]:
    """Ids or keyword arguments, one or several of them. ConfigError for anything else."""
    batches = [data] if isinstance(data, Tensor | Mapping) or not isinstance(data, Iterable) else list(data)
    for batch in batches:
        if not isinstance(batch, Tensor | Mapping):
            raise ConfigError(
                "data is text, a tensor of ids (batch, tokens), keyword arguments of a forward pass, or several of "
                f"these, not {type(batch).__name__}: torch.tensor(...) makes ids of a list of lists"
            )
    return batches


def short_names(models: Sequence[str]) -> list[str]:
    """Short names that tell models apart: the last part of a path, or all of it where two have the same."""
    short = [Path(name).name or name for name in models]
    return [name if short.count(one) > 1 or not one else one for name, one in zip(models, short, strict=True)]


def probe_files(results: Sequence[ProbeResult], data: str | None = None) -> dict[str, Any]:
    """Content of the files of a probe's folder, by name."""
    files: dict[str, Any] = {
        f"{file}.jsonl": [{"model": one.name, **finite_row(row)} for one in results for row in one.tables()[table]]
        for table, file in LINES.items()
        if table in ("sites", "norms") or any(one.tables()[table] for one in results)
    }
    models = [one.summary() for one in results]
    return files | {"summary.json": {"kind": "probe", "status": "finished", "data": data, "models": models}}
