"""The model card of an exported run: what a reader must know to use the model and to trust its numbers."""

from pathlib import Path
from typing import Any

from ..models.config import DecoderConfig
from ..schemes import parse


def card(
    shape: DecoderConfig,
    settings: dict[str, Any],
    summary: dict[str, Any],
    environment: dict[str, Any],
    model_type: str = "geonorm",
    remote_code: bool = False,
) -> str:
    """Markdown with the header that the hub reads. settings, summary, environment: what the run directory holds in
    config.yaml, summary.json and environment.json; model_type: the architecture of the folder.

    >>> summary = {"parameters": 1_050_000, "val_loss": 4.1, "val_bpb": 1.9, "tokens": 4096, "steps": 2, "seed": 0}
    >>> settings = {"data": "text.txt", "optim": {"name": "adamw", "schedule": "cosine"}}
    >>> environment = dict.fromkeys("data_sha256 geonorm commit torch device".split(), "unknown")
    >>> text = geonorm.hf.card(geonorm.DecoderConfig("pre"), settings, {**summary, "lr": 1e-3}, environment)
    >>> print(text.splitlines()[8])
    # A 1.05M-parameter language model under the residual scheme `pre`
    """
    scheme = parse(shape.scheme)
    task, predicted = ("text-generation", "token") if shape.causal else ("fill-mask", "masked token")
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: {task}\ntags: [geonorm, residual-scheme]\n"
        "license: other\nlicense_name: not-stated\n---",
        f"# A {summary['parameters'] / 1e6:.3g}M-parameter language model under the residual scheme `{scheme}`",
        f"`{scheme.about.equation}`  \n({scheme.about.source})" if scheme.about.equation else "",
        f"## Load it\n\n```python\n{loading('FOLDER', shape, model_type, remote_code)}\n```",
        "## How it was trained\n\n" + facts(shape, settings, summary, environment),
        f"Loss on held-out text in nats per {predicted}: {known(summary['val_loss'])}; in bits per byte: "
        f"{known(summary['val_bpb'])}. One run with one seed: it says nothing about the noise between seeds.",
        f"## Data and licence\n\nTrained on `{Path(settings['data']).name}` alone. The run states no licence: whoever "
        "publishes the model chooses one that the licence of these data allows, here and in the header of this page.",
        "## What it is not\n\nA research model from a comparison of normalization placements. Nobody has examined it "
        "for errors of fact, bias or harm, and it was not tuned to follow instructions.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def loading(folder: str, shape: DecoderConfig, model_type: str, remote_code: bool) -> str:
    """The line of Python that loads an exported folder."""
    ours = "geonorm.hf, " if model_type == "geonorm" and not remote_code else ""
    trust = ", trust_remote_code=True" if remote_code else ""
    kind = "CausalLM" if shape.causal else "MaskedLM"
    return f"import {ours}transformers; transformers.AutoModelFor{kind}.from_pretrained({folder!r}{trust})"


def facts(shape: DecoderConfig, settings: dict[str, Any], summary: dict[str, Any], environment: dict[str, Any]) -> str:
    kv = f", {shape.groups} of keys and values" if shape.groups != shape.heads else ""
    table = {
        "shape": f"{shape.layers} layers, width {shape.width}, {shape.heads} heads{kv}, {shape.mlp} MLP of "
        f"{shape.hidden}, vocabulary {shape.vocab_size}{', tied' if shape.tied else ''}, context {shape.context}",
        "parameters": f"{summary['parameters']:,}",
        "data": f"`{Path(settings['data']).name}`, sha256 of its tokens {environment['data_sha256']}",
        "tokens seen": f"{summary['tokens']:,} in {summary['steps']:,} steps",
        "seed": summary["seed"],
        "learning rate": f"{summary['lr']:g} ({settings['optim']['name']}, {settings['optim']['schedule']})",
        "own recipe": ", ".join(f"{k} {v:g}" for k, v in (summary.get("own_recipe") or {}).items()) or "none",
        "made with": f"geonorm {environment['geonorm']}, commit {environment['commit'] or 'unknown'}, torch "
        f"{environment['torch']}, {environment['device']}",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in table.items())])


def known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"
