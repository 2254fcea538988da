"""Errors that a user can act on: one line with problem and remedy; the command line then exits with 2."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class GeonormError(ValueError):
    """Base of all errors that geonorm raises on purpose.

    >>> try:
    ...     geonorm.parse("prre")
    ... except geonorm.GeonormError as error:
    ...     print(error)
    unknown scheme 'prre': did you mean 'pre'? (valid: ...)
    """

    agreed = False
    """True if every rank of a world raises it: rank 0 prints it once."""


class ConfigError(GeonormError):
    """A setting, scheme or option that does not exist or does not fit."""


class UntrustedCode(ConfigError):
    """A text read from a folder names code that nobody has allowed to run."""


class DataError(GeonormError):
    """A data source, tokenizer or token cache that cannot be used."""


class CheckpointError(GeonormError):
    """A run or checkpoint that is missing, damaged or does not fit."""


def require(condition: object, message: str, error: type[GeonormError] = ConfigError) -> None:
    """The error, with this message, unless the condition holds."""
    if not condition:
        raise error(message)


@contextmanager
def explained(message: str, error: type[GeonormError], *caught: type[BaseException]) -> Iterator[None]:
    """Inside, these errors of a library or the system are one of ours, of one line: the message, and what went
    wrong."""
    try:
        yield
    except GeonormError:
        raise
    except caught as reason:
        raise error(f"{message} ({cause(reason)[:200]})") from reason


class Interrupted(Exception):
    """Ctrl-C or a termination signal; everything is saved."""


def import_extra(module: str, need: str, extra: str) -> Any:
    """A library that not every installation has. ConfigError where it is missing: what needs it, and which extra of
    this package brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        library = (error.name or module).partition(".")[0]
        raise ConfigError(f"{need} needs {library}: pip install 'geonorm[{extra}]'") from None


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch says it with a RuntimeError, on a CPU in words alone."""
    names_memory = isinstance(error, RuntimeError) and re.search("out of memory|allocate memory", str(error))
    return isinstance(error, MemoryError) or bool(names_memory)


def cause(error: BaseException) -> str:
    """What went wrong, in one line: what the system says of a file, the key that is missing, or the first words of the
    error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


CALLED = {
    "hidden_size": ("width",), "n_embd": ("width", "hidden_size"), "d_model": ("width", "hidden_size"),
    "dim": ("width", "hidden_size"), "intermediate_size": ("hidden",), "n_inner": ("hidden", "intermediate_size"),
    "ffn_dim": ("hidden", "intermediate_size"), "num_hidden_layers": ("layers",),
    "n_layer": ("layers", "num_hidden_layers"), "n_layers": ("layers", "num_hidden_layers"),
    "num_attention_heads": ("heads",), "n_head": ("heads", "num_attention_heads"),
    "n_heads": ("heads", "num_attention_heads"), "num_key_value_heads": ("kv_heads",),
    "n_kv_heads": ("kv_heads", "num_key_value_heads"), "head_dim": ("head_width",),
    "max_position_embeddings": ("context",), "n_positions": ("context", "max_position_embeddings"),
    "n_ctx": ("context", "max_position_embeddings"), "block_size": ("context", "max_position_embeddings"),
    "max_seq_len": ("context", "max_position_embeddings"), "rms_norm_eps": ("eps", "norm_eps"),
    "norm_eps": ("eps",), "layer_norm_eps": ("eps", "norm_eps"), "layer_norm_epsilon": ("eps", "norm_eps"),
    "hidden_act": ("mlp",), "hidden_activation": ("mlp",), "activation_function": ("mlp",),
    "tie_word_embeddings": ("tied",), "partial_rotary_factor": ("rotary",), "rotary_pct": ("rotary",
    "partial_rotary_factor"), "rope_parameters": ("rope_theta",), "sliding_window": ("window",),
    "attention_dropout": ("attn_dropout",), "attn_pdrop": ("attn_dropout", "attention_dropout"),
    "rotary_emb_base": ("rope_theta",), "attention_bias": ("bias",), "mlp_bias": ("bias",), "use_bias": ("bias",),
    "final_logit_softcapping": ("soft_cap",), "initializer_range": ("init",), "use_qk_norm": ("qk_norm",),
    "learning_rate": ("lr",), "max_steps": ("steps",), "max_iters": ("steps",), "warmup_ratio": ("optim.warmup",),
    "lr_scheduler_type": ("optim.schedule",), "max_grad_norm": ("optim.clip",), "grad_clip": ("optim.clip",),
    "gradient_checkpointing": ("runtime.recompute",), "output_dir": ("out",), "report_to": ("log.to",),
    **dict.fromkeys(("seq_len", "seq_length", "sequence_length", "max_seq_length", "context_length", "ctx_len",
    "max_length"), ("context", "max_position_embeddings")),
    **dict.fromkeys(("wandb", "wandb_log", "use_wandb", "wandb_project"), ("log.to wandb",)),
    **dict.fromkeys(("bf16", "amp", "mixed_precision"), ("runtime.dtype bf16",)),
    **dict.fromkeys(("fp16", "precision", "dtype"), ("runtime.dtype",)),
    **dict.fromkeys(("grad_accum", "grad_accum_steps", "gradient_accumulation", "accumulate_grad_batches", "accumulate",
    "gradient_accumulation_steps", "device_batch_size", "microbatch", "micro_batch_size", "rank_microbatch_size",
    "per_device_train_batch_size", "local_batch_size"), ("micro_batch",)),
    **dict.fromkeys(("eval_interval", "eval_steps", "eval_every", "val_every"), ("evaluation.every",)),
    **dict.fromkeys(("eval_iters", "val_tokens"), ("evaluation.tokens",)),
    **dict.fromkeys(("save_steps", "save_interval", "save_every", "ckpt_every"), ("checkpoint.every",)),
    **dict.fromkeys(("batch", "bs", "train_batch_size", "global_batch_size"), ("batch_size",)),
    **dict.fromkeys(("model_name", "model", "model_name_or_path", "arch", "size"), ("preset",)),
    **dict.fromkeys(("num_steps", "train_steps", "iters", "iterations", "num_iterations", "epochs", "num_train_epochs"),
    ("steps",)),
    **dict.fromkeys(("dataset", "data_dir", "train_file", "dataset_name", "input_bin"), ("data",)),
    **dict.fromkeys(("warmup_iters", "num_warmup_steps"), ("optim.warmup_steps",)),
    **dict.fromkeys(("scheduler", "lr_schedule"), ("optim.schedule",)), "save_total_limit": ("checkpoint.keep",),
    "optimizer": ("optim.name",), "min_lr": ("optim.floor",), "wd": ("optim.weight_decay",),
    "beta1": ("optim.betas",), "beta2": ("optim.betas",), "dropout": ("attn_dropout",), "resume_from": ("resume",),
    "tokenizer_name": ("tokens.tokenizer",), "vocab": ("vocab_size",),
}  # fmt: skip
"""What settings are called elsewhere (Llama, GPT-2 and OLMo in transformers, its Trainer, nanoGPT, llm.c), and here,
some with their value; the first of them that is valid is meant."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return ``did you mean 'books-small'?`` for the valid name that others call so, the option of that name in another
    group, or the closest; or an empty string."""
    valid = list(valid)
    is_option = name.startswith("--")
    group, _, leaf = name.removeprefix("--").replace("-", "_").rpartition(".")
    meanings = [*CALLED.get(leaf, ())]
    if is_option:
        meanings.append(leaf)
    for meaning in meanings:
        ours, space, value = meaning.partition(" ")
        places = [f"{group}.{ours}" if group else ours, f"model.{ours}", ours]
        if is_option:
            places = [f"--{place.replace('_', '-')}" for place in places]
        in_other_groups = [option for option in valid if option.endswith(f".{places[-1].removeprefix('--')}")]
        for option in places + in_other_groups:
            if option in valid:
                return f"did you mean '{option}{space}{value}'?"
    matches = get_close_matches(name, valid, n=1)
    return f"did you mean '{matches[0]}'?" if matches else ""


def unknown(what: str, name: str, valid: Iterable[str], deeper: Iterable[str] = ()) -> str:
    """The one sentence for a name that does not exist: what it was, the nearest valid one, and all of them. deeper:
    more valid names, which are not listed."""
    valid = sorted(valid)
    guess = nearest(name, [*valid, *deeper])
    return f"unknown {what} {name!r}" + (f": {guess}" if guess else "") + f" (valid: {', '.join(valid)})"


def near_folder(name: str) -> str:
    """`: did you mean 'runs/nano'?` for the folder of a run or a model beside that path, or in runs, whose name is
    nearest; or an empty string."""
    path = Path(name)
    folders = {
        entry.name: str(entry)
        for place in dict.fromkeys((Path("runs"), path.parent))
        if place.is_dir() and os.access(place, os.R_OK | os.X_OK)
        for entry in place.iterdir()
        if os.path.isfile(entry / "config.yaml") or os.path.isfile(entry / "config.json")  # False where it may not look
    }
    matches = get_close_matches(path.name, folders, n=1)
    return f": did you mean '{folders[matches[0]]}'?" if matches else ""
