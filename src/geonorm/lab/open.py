"""The one opener of models: a run of ours, the best run of a comparison, a model folder, a name on the hub."""

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import elsewhere, output
from ..errors import CheckpointError, ConfigError, DataError, near_folder
from ..measure import load
from ..models.decoder import Decoder
from ..schemes import parse, stored
from ..settings import to_dict
from . import checkpoint
from .config import TrainConfig
from .data import NO_TEXT, Tokenizer, load_tokenizer
from .data.batches import NEXT_TOKEN, MaskedTokens, Objective, pick_objective
from .data.tokenizer import FileTokenizer
from .distributed import parallel
from .runs.folder import RunFolder, read_summary, rows_sha256_of
from .runs.identity import check_identity, read_last, recorded_identity
from .runs.provenance import read_sources
from .statistics.comparison import usable
from .storage import weights_sha256

CPU = torch.device("cpu")
ENDLESS = 10**9
"""A tokenizer of transformers without a limit has a model_max_length above this."""


@dataclass(frozen=True)
class Opened:
    """A model of transformers in evaluation mode on its device, and its tokenizer. `OpenedRun` is a run of ours."""

    name: str
    """The name that opens it again: in a comparison's folder that of the chosen run."""
    model: Any
    tokenizer: Any
    context: int | None
    """Most tokens that it reads at once; None if unknown."""
    device: torch.device

    def encode(self, text: str) -> list[int]:
        """Ids of running text, without tokens that mark its ends."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    @property
    def begin_id(self) -> int:
        """The id that begins a text: the beginning-of-text token, or the end-of-text token where there is no other.
        ConfigError for a tokenizer without either."""
        for kind in ("bos", "cls", "eos"):
            if (number := getattr(self.tokenizer, f"{kind}_token_id", None)) is not None:
                return int(number)
        raise ConfigError(f"the tokenizer of {self.name} has no token that begins a text: give a --prompt, no --bos")

    def check_id(self, largest: int) -> None:
        """DataError if the model has no embedding for the largest id that its tokenizer gave."""
        known = self.model.get_input_embeddings().weight.shape[0]
        if largest >= known:
            raise DataError(f"the tokenizer of {self.name} gives ids up to {largest}, its model knows {known}")

    @property
    def causal(self) -> bool:
        """True for a model that predicts the next token."""
        return not load.predicts_masked(self.model.config)

    @property
    def run_tokenizer(self) -> Tokenizer:
        """Its tokenizer in the form that runs have. DataError if it is not a fast one."""
        t = self.tokenizer
        if not getattr(t, "is_fast", False):
            raise DataError(
                f"{self.name} has no fast tokenizer: its bytes per token are not known, so use --tasks only"
            )
        return FileTokenizer(self.name, t.backend_tokenizer.to_str(), t.eos_token or t.sep_token)

    def objective(self) -> Objective:
        """The objective of its loss. ConfigError for a model of masked tokens without a mask token."""
        t = self.tokenizer
        if self.causal:
            return NEXT_TOKEN
        if t.mask_token_id is None:
            raise ConfigError(f"the tokenizer of {self.name} has no mask token")
        # the end that text is stored with; slow tokenizers only read running text, without ends
        end = self.run_tokenizer.eos if getattr(t, "is_fast", False) else -1
        return MaskedTokens(t.mask_token_id, end, len(t))

    def precision(self) -> AbstractContextManager[Any]:
        """The context to run it in."""
        return nullcontext()


@dataclass(frozen=True)
class OpenedRun(Opened):
    """The model of a run in its last state."""

    model: Decoder
    tokenizer: Tokenizer
    config: TrainConfig
    step: int
    """Step after which its weights were saved."""

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self.tokenizer.encode([text])[0]]

    @property
    def begin_id(self) -> int:
        return self.tokenizer.eos

    def check_id(self, largest: int) -> None:
        """Nothing to check: its tokenizer is the one that it was trained with."""

    @property
    def causal(self) -> bool:
        return self.config.objective == "causal"

    @property
    def run_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    def objective(self) -> Objective:
        return pick_objective(self.config.objective, self.tokenizer)

    def precision(self) -> AbstractContextManager[Any]:
        return parallel.precision(self.config.runtime, self.device)


def open_model(
    name: str,
    device: torch.device,
    *,
    scheme: str | None = None,
    causal: bool = True,
    dtype: str = "auto",
    tokenizer: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Opened:
    """The run, folder or hub model of that name. GeonormError, one line, for anything unusable.

    scheme: of a comparison's folder the best finished run of that scheme. The rest is for models of transformers.
    causal: one that predicts tokens, the next or masked ones; else of the class that its weights were saved from, and
    not quantised. tokenizer: another than its own.
    """
    name = run_of(name, scheme)
    hub: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    settings = read_settings(name, causal=causal, **hub)
    if isinstance(settings, TrainConfig):
        options = {"dtype": dtype != "auto", "tokenizer": tokenizer, "revision": revision}
        if useless := next((option for option, value in options.items() if value), None):
            raise ConfigError(f"{name} is a run: --{useless} is for models of transformers; leave it out")
        return open_run(Path(name), device)
    if causal and settings.is_encoder_decoder:
        raise ConfigError(f"{name} is an encoder-decoder: this needs a model of the next token, or of masked tokens")
    loaded_tokenizer = load.load_model_tokenizer(tokenizer or name, **hub)
    model = load.load_model(name, settings, device, dtype, causal=causal, **hub)
    context = load.context_of(settings)
    if context is None and settings.is_encoder_decoder:  # T5 has no end of positions, but was trained up to here
        context = loaded_tokenizer.model_max_length if loaded_tokenizer.model_max_length < ENDLESS else None
    return Opened(name, model, loaded_tokenizer, context, device)


def read_settings(
    name: str, *, causal: bool = True, revision: str | None = None, trust_remote_code: bool = False
) -> Any:
    """The settings of a run, or the configuration of a model of transformers, our own types included, without weights.
    GeonormError where it is neither or cannot be used."""
    path = Path(name)
    if path.exists() and not (path / "config.json").is_file():
        folder = run_folder(path)
        if not (folder / "config.yaml").exists():
            raise CheckpointError(f"{path} holds no run (no config.yaml), nor a config.json of a Hugging Face model")
        return RunFolder(folder).config()
    load.hugging_face()
    from .. import hf  # noqa: F401  our own model types become known

    if trust_remote_code:
        elsewhere.allow()
    return load.load_config(
        name, causal=causal, quantised=causal, revision=revision, trust_remote_code=trust_remote_code
    )


def open_run(path: Path, device: torch.device = CPU) -> OpenedRun:
    """The model of a run at its newest whole checkpoint, or at the one that `path` names (RUN/checkpoints/step-N),
    whatever number of ranks trained it. CheckpointError if there is no checkpoint, if it belongs to another run, or if
    the run has finished and its newest checkpoint is not the one that its summary describes."""
    folder = run_folder(path)
    run = RunFolder(folder)
    config = run.config()
    parse(stored(config.scheme, read_sources(folder), str(folder)))
    model = Decoder(config.shape(config.scheme)).to(device)
    identity = recorded_identity(folder, to_dict(config))
    if path != folder:
        state: Any = checkpoint.load_checkpoint(path, model, identity=identity)
    else:
        state = checkpoint.load_newest(run.checkpoints, model, None, output.complain, identity=identity)
        if state is None:
            raise CheckpointError(f"{path} holds no checkpoint: let it train first, or put its checkpoints back")
        summary, last = read_summary(folder), run.checkpoints / f"step-{state['step']}"
        if summary and summary.status == "finished":
            ended = summary.steps or state["step"], summary.weights_sha256 or weights_sha256(state)
            if ended != (state["step"], weights_sha256(state)):
                raise CheckpointError(
                    f"{path} has finished at step {ended[0]} with other weights than {last} has: to use these, give it"
                )
    tokenizer = load_tokenizer(str(folder / "tokenizer.json"), NO_TEXT, model.config.vocab_size)
    check_identity(str(folder / "tokenizer.json"), {**identity, "tokenizer_sha256": tokenizer.fingerprint}, identity)
    return OpenedRun(str(path), model.eval(), tokenizer, model.config.context, device, config, state["step"])


def run_folder(path: Path) -> Path:
    """The folder of a run, given by itself or by one of its checkpoints."""
    return path.parents[1] if path.parent.name == "checkpoints" else path


def read_finished(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Summary of the finished run in a folder, and environment of its last part. CheckpointError if the run has not
    finished, or has lost rows since."""
    summary = read_summary(path)
    if summary is None or summary.status != "finished":
        status = summary.status if summary else "running or interrupted"
        raise CheckpointError(f"{path} is not finished ({status}): the command that began it goes on with it")
    if summary.rows_sha256 not in (None, rows_sha256_of(path)):
        raise CheckpointError(f"{path} has lost rows since it finished, or has others: train anew with another --out")
    return summary.row(), read_last(path)


def run_of(name: str, scheme: str | None) -> str:
    """The name itself; for a comparison's folder, the path of the best finished run of a scheme, by validation loss.
    ConfigError, which lists the runs, where no scheme is given, and, which lists the schemes, where none of its runs
    has finished."""
    path = Path(os.path.expanduser(name))
    folders = sorted(settings.parent for settings in path.glob("runs/*/config.yaml"))
    if not folders:
        if scheme is not None:
            hint = "" if path.exists() else near_folder(name)
            raise ConfigError(f"--scheme is for the folder of a comparison: there are no runs in {name}{hint}")
        return str(path) if path.exists() else name
    if scheme is None:
        runs = ", ".join(folder.name for folder in folders)
        raise ConfigError(
            f"{name} is a comparison: give --scheme for the best run of a scheme, or one in {path / 'runs'}: {runs}"
        )
    wanted = str(parse(scheme))
    ended = ((summary, folder) for folder in folders if (summary := read_summary(folder)) and usable(summary))
    final = [(summary, folder) for summary, folder in ended if summary.phase != "tune"]
    of_scheme = [(summary.val_loss, str(folder)) for summary, folder in final if summary.scheme == wanted]
    if not of_scheme:
        known = ", ".join(dict.fromkeys(str(summary.scheme) for summary, _ in final)) or "none"
        raise ConfigError(f"no run of {wanted} has finished in {name} (finished schemes: {known})")
    return min(of_scheme)[1]
