"""Shape of a model and the named sizes. No torch here: the command line reads this file."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

from ..errors import ConfigError, require, unknown
from ..settings import Count, Natural, NotNegative, Positive, Range, Settings


@dataclass(frozen=True)
class TransformerConfig(Settings):
    """The stream of a Transformer, whatever enters it. Everything but `scheme` is shared by all schemes that are
    compared."""

    prefix = "model."

    scheme: str = "geonorm"
    """Residual scheme, as in `geonorm schemes`."""
    layers: Count = 4
    """Number of blocks L; each has an attention and an MLP residual, or one for both."""
    width: Count = 128
    """Dimension of the residual stream."""
    heads: Count = 4
    """Query heads."""
    kv_heads: Count | None = None
    """Key and value heads (grouped-query attention); as many as heads when not given."""
    head_width: Count | None = None
    """Dimension of a head; width / heads when not given."""
    hidden: Count = 344
    """Hidden units of the MLP."""
    mlp: Literal["swiglu", "gelu", "gelu_tanh", "relu2", "geglu"] = "swiglu"
    """Gated SiLU (three matrices), GELU (two), GELU by the tanh formula as in GPT-2, ReLU squared (two), or gated GELU
    by the tanh formula (T5 1.1)."""
    block: Literal["sequential", "parallel"] = "sequential"
    """Attention, then MLP; or both on the same input, their sum one update (GPT-J, GPT-NeoX)."""
    norm: Literal["rms", "layer", "dyt", "derf", "gated", "taper", "none"] = "rms"
    """What N is in the scheme's equation. taper: inside blocks RMSNorm that becomes a linear map (arXiv:2602.10408)."""
    taper_from: Count = 1000
    """For norm taper: the last optimizer step of plain RMSNorm."""
    taper_to: Count = 10000
    """For norm taper: the optimizer step at which norms of blocks are linear maps; between both a cosine."""
    gains: bool = True
    """Whether norms have learned gains."""
    norm_bias: bool = True
    """Whether norms with gains have a learned bias, too: LayerNorm, DyT and Derf; RMSNorm never has one."""
    eps: NotNegative = 1e-6
    """Added to the mean square inside norms."""
    qk_norm: Literal["none", "head", "full"] = "none"
    """RMSNorm on queries and keys before RoPE: per head, or over all heads as in OLMo 2."""
    qk_scale: Positive = 1.0
    """Factor on queries and on keys, after norm and RoPE: above 1 attention is sharper (nanochat: 1.2)."""
    values: Literal["own", "first", "token"] = "own"
    """What attention's values are: own, W y; first: from the second block on mixed with those of the first block, value
    residual (arXiv:2410.17897); token: in every second block plus a vector of the token, through a gate (nanochat)."""
    attn_gate: bool = False
    """Whether what attention found is multiplied by sigmoid(G y) before the output matrix, feature by feature of every
    head; G is one more matrix, treated as that of the queries (arXiv:2505.06708)."""
    attn_dropout: Annotated[float, Range(0, 0.99)] = 0.0
    """Share of attention weights that are set to 0 in training; the others are scaled up."""
    window: Count | None = None
    """Tokens that a token sees, itself the last of them (sliding window); all before it when not given."""
    full_every: Count | None = None
    """Where there is a window: every n-th block has none, as the second of two in Gemma 2; all have it when not
    given."""
    bias: bool = False
    """Whether linear layers have biases."""
    positions: Literal["rope", "learned", "none"] = "rope"
    """rope: queries and keys are rotated; learned: one vector a position, added to the embedding (GPT-2); none: only
    the causal mask tells positions apart."""
    rope_theta: Positive = 10000.0
    """Base of the rotary position encoding."""
    rotary: float = 1.0
    """Share of each head that is rotated, its first dimensions (GPT-NeoX)."""
    causal: bool = True
    """Whether a token sees those before it alone. --objective says so for a run."""
    init: Literal["fan_in", "neox", "gpt2", "zero", "nanochat"] = "fan_in"
    """Standard deviation of weights, which schemes multiply: 1/sqrt(fan_in); small_init and wang_init of GPT-NeoX; 0.02
    as in GPT-2; fan_in with output matrices that begin at 0; or nanochat's, where they do so too."""
    init_depth: Count | None = None
    """Blocks for which neox and gpt2 scale the output matrices (o, down); those of the model when not given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", str(self.scheme))  # a Scheme is as good as its name
        super().__post_init__()
        even, pairs = ("n even", " (rotary pairs)") if self.positions == "rope" else ("", "")
        if self.head_width is None and (self.width % self.heads or (even and self.head_dim % 2)):
            raise ConfigError(f"model.width {self.width} must be a{even} multiple of model.heads {self.heads}{pairs}")
        if even and self.head_dim % 2:
            raise ConfigError(f"model.head_width {self.head_width} must be even{pairs}")
        if not 0 < self.rotary <= 1 or (even and (self.rotary_dim < 2 or self.rotary_dim % 2)):
            raise ConfigError(
                f"model.rotary {self.rotary:g} of a head of {self.head_dim} must be an even number of dimensions, at "
                "least 2 and at most all"
            )
        require(
            self.rotary == 1 or self.positions == "rope",
            f"model.rotary {self.rotary:g} needs model.positions=rope, not {self.positions}",
        )
        require(
            self.window is None or self.causal,
            f"model.window {self.window} needs a model whose tokens see those before them alone",
        )
        require(
            self.full_every is None or self.window is not None,
            f"model.full_every {self.full_every} needs model.window, which other blocks then have",
        )
        require(
            self.heads % self.groups == 0,
            f"model.heads {self.heads} must be a multiple of model.kv_heads {self.kv_heads}",
        )

    @property
    def head_dim(self) -> int:
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return int(self.head_dim * self.rotary)

    def window_of(self, layer: int) -> int | None:
        """Tokens that a token sees in that block, or None for all."""
        return None if self.full_every is not None and (layer + 1) % self.full_every == 0 else self.window

    @property
    def sublayers(self) -> int:
        """Residuals of a block, as a `Site` at the ends of the stream counts them."""
        return 1 if self.block == "parallel" else 2

    @property
    def groups(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads


@dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """A Transformer on tokens: causal, or attending to both sides, which is an encoder. Its fields are the settings
    `--model.*` of `geonorm train`, and `scheme`.

    >>> config = geonorm.DecoderConfig("geonorm", layers=2, width=64, heads=4, hidden=128, vocab_size=256)
    >>> config.head_dim
    16
    """

    vocab_size: Count = 1024
    """Rows of the embedding."""
    context: Count = 128
    """Tokens of a training sequence."""
    soft_cap: Positive | None = None
    """Logits are kept between minus this and this, c tanh(logits / c) (Gemma 2, nanochat); not when not given."""
    tied: bool = False
    """Whether the head shares the embedding's weights."""
    document_end: Natural | None = None
    """Id of the token between documents: where it is given, the tokens of a row see those of their own document alone,
    and learned positions begin anew with each."""
    embed_norm: bool = False
    """Whether an N with gains stands after the embedding, before the scheme's own entry (BERT, BLOOM)."""
    transform: bool = False
    """Whether a linear layer, GELU and an N stand before the head, all with biases, the logits too (BERT)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.document_end is None or self.causal, "model.document_end is for models of the next token: leave it out"
        )


@dataclass(frozen=True)
class VisionConfig(TransformerConfig):
    """A Transformer on the patches of an image, which see each other, and a head on one vector of the image
    (arXiv:2010.11929).

    >>> config = geonorm.models.VisionConfig("pre", image_size=32, patch=4)
    >>> config.side
    8
    """

    causal: bool = False
    """Off: patches have no order."""
    image_size: Count = 32
    """Height and width of an image in pixels, a multiple of `patch`."""
    patch: Count = 4
    """Height and width of a patch in pixels."""
    channels: Count = 3
    """Numbers of a pixel."""
    classes: Count = 10
    """Classes that the head tells apart."""
    pool: Literal["token", "mean"] = "token"
    """What the head reads after the exit: a token of its own in front of the patches, or the mean over all patches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(not self.causal, "model.causal is for tokens: patches of an image have no order")
        require(
            self.values != "token", "model.values token needs tokens of a vocabulary; for images choose own or first"
        )
        require(
            self.image_size % self.patch == 0,
            f"model.image_size {self.image_size} must be a multiple of model.patch {self.patch}",
        )
        require(
            self.positions != "rope" or self.rotary_dim % 4 == 0,
            f"model.rotary {self.rotary:g} of a head of {self.head_dim}: {self.rotary_dim} dimensions turn, which "
            "must be a multiple of 4 (pairs for the row and for the column of a patch)",
        )

    @property
    def side(self) -> int:
        """Patches in a row, and rows of patches."""
        return self.image_size // self.patch

    @property
    def context(self) -> int:
        """Tokens of the stream: patches, and the token that the head reads."""
        return self.side**2 + (self.pool == "token")


GATED = ("swiglu", "geglu")
"""The MLPs of three matrices."""

BERT: dict[str, Any] = {
    "mlp": "gelu", "norm": "layer", "eps": 1e-12, "bias": True, "tied": True, "positions": "learned",
    "embed_norm": True, "transform": True, "causal": False,
}  # fmt: skip
"""What BERT is under post(entry=embedding), but for its size."""

MODERN: dict[str, Any] = {
    "scheme": "lambdas", "mlp": "relu2", "gains": False, "qk_norm": "head", "qk_scale": 1.2, "values": "token",
    "soft_cap": 15.0, "rope_theta": 100000.0, "init": "nanochat",
}  # fmt: skip
"""A Pre-Norm as it is tuned today, nanochat's, but for its size: under another scheme all else stays."""

PRESETS: dict[str, DecoderConfig] = {
    "nano": DecoderConfig(),
    "nano-gpt2": DecoderConfig(
        hidden=512, mlp="gelu_tanh", norm="layer", eps=1e-5, bias=True, tied=True, positions="learned"
    ),
    "nano-bert": DecoderConfig(hidden=512, **BERT),
    "modern": DecoderConfig(hidden=512, **MODERN),
    "mini": DecoderConfig(layers=12, width=192, heads=6, hidden=512, vocab_size=4096, context=256),
    "125m": DecoderConfig(layers=12, width=768, heads=12, hidden=2048, vocab_size=50304, context=1024),
    "paper-125m": DecoderConfig(
        layers=12, width=768, heads=12, hidden=3072, vocab_size=50304, context=512, mlp="gelu", norm="layer", bias=True
    ),
    "bert-base": DecoderConfig(layers=12, width=768, heads=12, hidden=3072, vocab_size=30522, context=512, **BERT),
    "modern-d12": DecoderConfig(layers=12, width=768, heads=6, hidden=3072, vocab_size=32768, context=2048, **MODERN),
    "350m": DecoderConfig(layers=24, width=1024, heads=16, hidden=2736, vocab_size=50304, context=1024),
    "1.3b": DecoderConfig(layers=24, width=2048, heads=16, hidden=5464, vocab_size=50304, context=2048),
    "7b": DecoderConfig(layers=32, width=4096, heads=32, hidden=11008, vocab_size=50304, context=2048),
    "70b": DecoderConfig(layers=80, width=8192, heads=64, kv_heads=8, hidden=28672, vocab_size=50304, context=4096),
}


def preset(name: str, **changes: Any) -> DecoderConfig:
    """The named model with fields replaced; ConfigError names the nearest preset or field.

    >>> geonorm.preset("125m", scheme="peri").layers
    12
    """
    if name not in PRESETS:
        raise ConfigError(unknown("preset", name, PRESETS))
    known = {f.name for f in fields(DecoderConfig)}
    for key in changes:
        if key not in known:
            raise ConfigError(unknown("field of model", key, known))
    return replace(PRESETS[name], **changes)
