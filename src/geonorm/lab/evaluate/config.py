"""Settings of what is asked of a model. No torch here: the command line reads this file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from ...errors import require
from ...settings import Count, NotNegative, Range, Settings
from ..config import MAX_SEED


@dataclass(frozen=True)
class EvalConfig(Settings):
    """Loss on any text, and tasks through lm_eval, of a run, an exported folder or any Hugging Face model."""

    words = ("model",)
    examples = (
        "geonorm eval runs/geonorm --data other.txt --out runs/geonorm-eval",
        "geonorm eval runs/mine --scheme geonorm --tasks hellaswag --limit 200",
    )

    model: str
    """Run directory, folder of a comparison (with --scheme), model folder, or a name on the Hugging Face hub."""
    data: str | None = None
    """Text as for train: its held-out part if it has one or if the run, or that which a folder was exported from, was
    trained on this very source, else all of it; one file of a pair of files is another source."""
    tasks: list[str] = field(default_factory=list)
    """Sets of questions in $GEONORM_DATA/eval, JSONL files of questions, or tasks that lm_eval knows."""
    tokens: Count | None = None
    """Most tokens of the text."""
    limit: Count | None = None
    """Most questions of each task."""
    context: Count | None = None
    """Tokens of a window of text; when not given the model's own context, of Hugging Face models at most 2048."""
    batch_size: Count = 8
    """Questions at a time."""
    out: str | None = None
    """Directory for summary.json, and for the definitions of local tasks."""
    device: str = "auto"
    """auto, cpu or cuda."""
    scheme: str | None = None
    """With the folder of a comparison: its best finished run of this scheme."""
    field: str | None = None
    """As --tokens.field of train."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.data is not None or self.tasks, "--data is missing: give a text, or questions with --tasks")

    def unused(self) -> Iterator[tuple[str, str]]:
        if not self.tasks:
            yield from (("batch_size", "--tasks"), ("limit", "--tasks"))
        if self.data is None:
            yield from (("tokens", "--data"), ("context", "--data"), ("field", "--data"))


@dataclass(frozen=True)
class GenerateConfig(Settings):
    """Text from a trained run or a Hugging Face model."""

    words = ("run",)
    examples = (
        "geonorm generate runs/geonorm --tokens 200 --seed 1",
        "geonorm generate runs/mine --scheme geonorm --temperature 0",
    )

    run: str
    """Run directory, folder of a comparison (with --scheme), model folder, or name on the Hugging Face hub."""
    prompt: str = ""
    """Beginning of the text; without it a new document begins."""
    tokens: Annotated[int, Range(1, 1_000_000)] = 100
    """New tokens."""
    temperature: NotNegative = 0.8
    """0 takes the likeliest token each time."""
    top_k: Count | None = 50
    """Sample among this many likeliest tokens."""
    seed: Annotated[int, Range(0, MAX_SEED)] = 0
    """Seed of the sampling."""
    device: str = "auto"
    """auto, cpu or cuda."""
    scheme: str | None = None
    """With the folder of a comparison: its best finished run of this scheme."""
