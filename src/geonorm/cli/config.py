"""Settings of the verbs that the command line alone has."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ConfigError
from ..settings import Count, Settings


@dataclass(frozen=True)
class SchemesConfig(Settings):
    """Equation, source and fields of every residual scheme, or of one."""

    words = ("name",)
    examples = ("geonorm schemes geonorm", "geonorm schemes geonorm --out figures")

    name: str | None = None
    """A scheme; a list of all when not given."""
    json: bool = False
    """All that is known, for programs."""
    out: str | None = None
    """Directory for a picture of how it moves a token, NAME.svg; of every scheme when none is named."""


@dataclass(frozen=True)
class RegisterConfig(Settings):
    """The residual rule of models with its numbers: how far each sub-layer turns the stream, and its share of the last
    state. Checkpoints are not loaded: what their rule learned is read by range."""

    words = ("models",)
    examples = ("geonorm register --out runs/register", "geonorm register muse_spark checkpoints/mine --out runs/mine")

    models: list[str] = field(default_factory=list)
    """Types of models of transformers, folders or safetensors files of checkpoints, their URLs, or hub names; every
    causal family when none is given."""
    out: str = "runs/register"
    """Directory for summary.json, register.csv and report.html; new, or of the same register."""


@dataclass(frozen=True)
class SameConfig(Settings):
    """Say whether residual rules are one function up to a rescaling of the stream; a counter-example if not."""

    words = ("schemes",)
    examples = ("geonorm same beam peri", "geonorm same pre peri beam olmo2")

    schemes: list[str] = field(default_factory=list)
    """Two rules to compare, or more to sort into classes; all registered ones when none is given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.schemes) == 1:
            raise ConfigError("a second rule is missing: geonorm same A B")


@dataclass(frozen=True)
class DataConfig(Settings):
    """What a text source holds (inspect), or its tokens written to the cache (prepare)."""

    words = ("action", "source")
    examples = (
        "geonorm data inspect my.txt",
        "geonorm data prepare my.jsonl.zst --vocab-size 4096",
    )
    action: Literal["inspect", "prepare"]
    """inspect: print a description; prepare: tokenize into the cache, $GEONORM_CACHE or
    ~/.cache/geonorm."""
    source: str
    """Text, as for --data of train."""
    tokenizer: str = "bpe"
    """For prepare, as --tokens.tokenizer of train."""
    vocab_size: Count = 1024
    """For prepare, the model's vocabulary, which a BPE that is trained on the text fills."""
    field: str | None = None
    """As --tokens.field of train."""
    limit: Count | None = None
    """For prepare, as --tokens.limit of train."""

    def unused(self) -> Iterator[tuple[str, str]]:
        if self.action == "inspect":
            yield from ((name, "prepare") for name in ("tokenizer", "vocab_size", "limit"))
