"""`geonorm export`: a finished run as a model folder for transformers."""

from pathlib import Path

from .. import hf
from ..errors import CheckpointError
from ..hf.card import loading
from ..hf.export import check_target, export
from ..hf.layouts import architecture
from ..settings import to_dict
from .config import ExportConfig
from .open import open_run, read_finished, run_of
from .runs.provenance import seen_data


def export_run(options: ExportConfig) -> list[str]:
    """Writes the folder and returns lines about it, of which the first is its path. GeonormError, before anything is
    written, for a run that has not finished and a folder that is not empty."""
    to = Path(options.to)
    check_target(to)
    path = Path(run_of(options.run, options.scheme))
    run = open_run(path)
    summary, environment = read_finished(path)
    if run.tokenizer.name == "none":
        raise CheckpointError(f"{path} was trained on token ids and has no tokenizer: a model folder needs one")
    shape = run.model.config
    model_type = architecture(shape, options.layout)
    text = hf.card(shape, to_dict(run.config), summary, environment, model_type, options.remote_code)
    export(run.model, run.tokenizer.json, run.tokenizer.eos, to, options.layout, options.remote_code, text,
           mask=None if shape.causal else run.tokenizer.mask,
           trained_on=" ".join(sorted(seen_data(path))))  # fmt: skip
    return [
        str(to),
        f"step {run.step} of {path}",
        f"load it: {loading(str(to), shape, model_type, options.remote_code)}",
    ]
