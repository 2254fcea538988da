"""Settings of `geonorm probe`. No torch here."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ..errors import require
from ..settings import Count, Range, Settings


@dataclass(frozen=True)
class ProbeConfig(Settings):
    """The geometry of a model's hidden states, sub-layer by sub-layer and norm by norm, on a text."""

    words = ("models",)
    common = ("data", "tokens", "gradients", "ablate_blocks", "scheme", "out")
    examples = (
        "geonorm probe gpt2 runs/geonorm --data my.txt --out runs/geometry",
        "geonorm probe runs/mine --scheme geonorm --gradients --ablate-blocks",
    )

    models: list[str]
    """Runs of ours, Hugging Face directories, or hub names; several are compared on one page."""
    data: str = "stdlib"
    """Text, as for train; its held-out part comes first."""
    field: str | None = None
    """As --tokens.field of train."""
    tokens: Annotated[int, Range(2)] = 32768
    """Most tokens to read."""
    context: Annotated[int, Range(2)] = 512
    """Tokens of a window; less where the model has less."""
    batch: Count | None = None
    """Windows of a forward pass, 8 by default."""
    gradients: bool = False
    """Also the gradient norm of every sub-layer's weights, of one batch."""
    ablate_blocks: bool = False
    """Also the loss without one block or several in a row, and the angle between their ends, on the first 4096 tokens,
    in whole passes."""
    bos: bool = False
    """Begin every window with the token that begins a text (of runs of ours: the one that ends the text before)."""
    out: str = "runs/probe"
    """Directory for trace.jsonl, norms.jsonl, summary.json, report.html and figures; new, or of the same probe."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision that a Hugging Face model runs in; auto: as stored. Measures are in float32 or better."""
    tokenizer: str | None = None
    """Directory or name of a tokenizer, in place of the model's own."""
    revision: str | None = None
    """Branch, tag or commit of hub models."""
    trust_remote_code: bool = False
    """Run Python code that comes with a hub model."""
    norms_only: bool = False
    """No sub-layers: norms alone, of any model."""
    scheme: str | None = None
    """With the folder of a comparison: probe its best finished run of this scheme."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(set(self.models)) == len(self.models), "name each model once")
        require(
            not (self.norms_only and (self.gradients or self.ablate_blocks)),
            "--norms-only (sites=False) has no sub-layers: leave out --gradients and --ablate-blocks",
        )
