"""`geonorm export`: a finished run as a model folder for transformers."""

from __future__ import annotations

from pathlib import Path

from .. import hf
from ..hf.export import check_target, export
from ..hf.layouts import architecture, check_layout
from ..settings import to_dict
from .config import ExportConfig
from .open import open_run, read_finished, run_of
from .runs.provenance import seen_data


def export_run(options: ExportConfig) -> list[str]:
    """Writes the folder; what to say of it, where it is first. GeonormError, before anything is written, for a run
    that is not finished and a folder that is not empty."""
    to = Path(options.to)
    check_target(to)
    check_layout(options.layout)
    path = Path(run_of(options.run, options.scheme))
    summary, environment, _ = read_finished(path)
    run = open_run(path)
    shape = run.model.config
    model_type = architecture(shape, options.layout)
    text = hf.card(shape, to_dict(run.config), summary, environment, model_type, options.remote_code)
    export(run.model, run.tokenizer.json, run.tokenizer.eos, to, options.layout, options.remote_code, text,
           mask=None if shape.causal else run.tokenizer.mask,
           trained_on=" ".join(sorted(seen_data(path))))  # fmt: skip
    ours = "geonorm.hf, " if model_type == "geonorm" and not options.remote_code else ""
    how = f"{str(to)!r}, trust_remote_code=True" if options.remote_code else repr(str(to))
    kind = "CausalLM" if shape.causal else "MaskedLM"
    return [str(to), f"load it: import {ours}transformers; transformers.AutoModelFor{kind}.from_pretrained({how})"]
