"""Where the residual sites of Hugging Face models are: one entry per `model_type`, as of transformers 5.24.

A block of any of these models is a list of sub-layers, and each sub-layer is

    x' = after(x + output(dropout(branch(norm(x))) + ... other branches side by side))

with norm (read before the branch), output (on the update, inside the residual), after (on the stream) and dropout each
there or not. Nothing else about a family is known anywhere in the project: the probe measures by this table and
`hf.apply` replaces residuals by it. Pure data: neither torch nor transformers is imported; models are only walked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import ConfigError, unknown

KINDS = ("attn", "mlp", "cross", "parallel")
BY_HAND = "name its modules by hand (--blocks, --sublayers)"


@dataclass(frozen=True)
class Branch:
    """A sub-layer's function. Paths are relative to the block.

    modules: run one after the other; the output of the last (its first entry if a tuple) is the raw update u. Dropout
    that is part of these modules (GPT-2, GPT-J, GPT-Neo) is not listed.
    norm: read before the first module, or None.
    dropout: a Dropout between u and the addition, or the block's own number with its probability (OPT), or None.
    scale: the block's own number that multiplies u before the addition (Granite), or None. Both also as the number.
    arguments: what its first module is handed beside the stream, {its name: the block's}, where that was observed.
    """

    modules: tuple[str, ...]
    norm: str | None = None
    dropout: str | float | None = None
    scale: str | float | None = None
    arguments: Mapping[str, str] | None = None

    @property
    def reader(self) -> str:
        """The module that is handed the stream itself."""
        return self.norm or self.modules[0]


@dataclass(frozen=True)
class Sublayer:
    """One residual site: x' = after(x + output(sum of branches)). Paths are relative to the block.

    Sub-layers of a block are in the order of the computation; a cross sub-layer runs only where there is an encoder's
    output. Branches of `parallel` are attention, then MLP; both read x, and share one norm where the names are equal.
    """

    kind: str
    branches: tuple[Branch, ...]
    output: str | None = None
    after: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments of its first module that the block knows by another name: {the module's: the block's}."""

    @property
    def placement(self) -> str:
        """Where the norms stand, as the scheme with that layout is called: pre, peri, olmo2, post; none; else mixed."""
        inside = all(branch.norm for branch in self.branches)
        layouts = {
            (True, False, False): "pre",
            (True, True, False): "peri",
            (False, True, False): "olmo2",
            (False, False, True): "post",
            (False, False, False): "none",
        }
        return layouts.get((inside, bool(self.output), bool(self.after)), "mixed")

    @property
    def text(self) -> str:
        """As `sublayer` reads it."""
        chains = "+".join(">".join(branch.modules) for branch in self.branches)
        norms = "+".join(dict.fromkeys(branch.norm for branch in self.branches if branch.norm))
        parts = {"norm": norms, "branch": chains, "output": self.output, "after": self.after}
        return f"{self.kind}:" + ",".join(f"{name}={value}" for name, value in parts.items() if value)

    @property
    def norms(self) -> dict[str, str]:
        """Every norm of the site by path: its role input, output or stream."""
        found = {branch.norm: "input" for branch in self.branches if branch.norm}
        return found | {path: role for path, role in ((self.output, "output"), (self.after, "stream")) if path}


@dataclass(frozen=True)
class Stack:
    """A list of equal blocks over one residual stream. Paths are relative to the base model.

    name          of the stream: decoder or encoder
    blocks        path of the list of blocks
    sublayers     those of every block
    embedding     the token (or patch) embedding; None if unknown
    entry         norm between embedding and first block, or None
    exit          norm after the last block, or None
    norm          rms or layer
    gain_offset   what is added to a stored gain (1 for Gemma: the norm multiplies by 1 + weight)
    eps           of norms that have none to ask for (OLMo)
    returns       kinds of sub-layers; what the module of each returns beside its update, the block returns beside the
                  stream, in this order: None where one did not run
    """

    name: str
    blocks: str
    sublayers: tuple[Sublayer, ...]
    embedding: str | None = None
    entry: str | None = None
    exit: str | None = None
    norm: str = "rms"
    gain_offset: float = 0.0
    eps: float = 1e-6
    returns: tuple[str, ...] = ()
    layers: tuple[tuple[Sublayer, ...], ...] = ()
    """The sub-layers of each block where blocks may differ."""
    tupled: bool = False
    """True where a block returns a tuple though there is nothing beside the stream."""

    @property
    def count(self) -> int:
        """Sub-layers of a block, two at least: those by which sites are counted."""
        return max(2, *(len(layer) for layer in self.layers or (self.sublayers,)))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Stack:
        """The inverse of dataclasses.asdict, also through JSON."""

        def read(saved: Any) -> tuple[Sublayer, ...]:
            return tuple(Sublayer(**{**each, "branches": tuple(map(branch, each["branches"]))}) for each in saved)

        def branch(saved: Any) -> Branch:
            return Branch(**{**saved, "modules": tuple(saved["modules"])})

        lists = {"returns": tuple(saved["returns"]), "layers": tuple(map(read, saved["layers"]))}
        return cls(**{**saved, **lists, "sublayers": read(saved["sublayers"])})

    def of(self, layer: int) -> tuple[Sublayer, ...]:
        """The sub-layers of a block."""
        return self.layers[layer] if self.layers else self.sublayers

    @classmethod
    def by_hand(cls, blocks: str, sublayers: Iterable[str], *, name: str = "decoder", **ends: str | None) -> Stack:
        """For a model that the table does not have: see `sublayer` for the text of one. ends: entry, exit."""
        parsed = tuple(map(sublayer, sublayers))
        if not blocks or not parsed:
            raise ConfigError("modules by hand need the path of the list of blocks and at least one sub-layer")
        return cls(name, blocks, parsed, entry=ends.get("entry"), exit=ends.get("exit"), norm="")


def sublayer(text: str, **arguments: str) -> Sublayer:
    """`attn:norm=ln_1,branch=attn` as a Sublayer; for arguments see there.

    Fields: norm, branch, output, after, dropout, scale. Modules that run one after the other are joined by >
    (fc1>act>fc2), branches side by side by + (attn+mlp, with one norm or as many: ln_1+ln_2).
    """
    kind, _, rest = text.partition(":")
    fields = {name: value for name, _, value in (part.partition("=") for part in rest.split(",") if part)}
    valid = ("norm", "branch", "output", "after", "dropout", "scale")
    if kind not in KINDS:
        raise ConfigError(unknown("kind of sub-layer", kind, KINDS))
    for name, value in fields.items():
        if name not in valid:
            raise ConfigError(unknown(f"field of sub-layer {text!r}:", name, valid))
        if not value:
            raise ConfigError(f"sub-layer {text!r}: {name} is empty")
    if "branch" not in fields:
        raise ConfigError(f"sub-layer {text!r} names no branch: write {kind}:norm=NORM,branch=MODULE")
    chains = [tuple(chain.split(">")) for chain in fields["branch"].split("+")]
    spread = []
    for name in ("norm", "dropout", "scale"):
        given = [path or None for path in fields.get(name, "").split("+")]
        if len(given) not in (1, len(chains)):
            raise ConfigError(f"sub-layer {text!r}: {len(given)} paths of {name} for {len(chains)} branches")
        spread.append(given if len(given) == len(chains) else given * len(chains))
    return Sublayer(kind, tuple(map(Branch, chains, *spread)), fields.get("output"), fields.get("after"), arguments)


def rows(text: str) -> tuple[Sublayer, ...]:
    return tuple(map(sublayer, text.split()))


ATTN, MLP = "attn:norm=input_layernorm,branch=self_attn", "mlp:norm=post_attention_layernorm,branch=mlp"
BEFORE_MLP = "mlp:norm=pre_feedforward_layernorm,branch=mlp"
OUT = "output=post_feedforward_layernorm"
LLAMA = Stack("decoder", "layers", rows(f"{ATTN} {MLP}"), "embed_tokens", exit="norm")
GEMMA = replace(LLAMA, sublayers=rows(f"{ATTN},output=post_attention_layernorm {BEFORE_MLP},{OUT}"), gain_offset=1.0)
OLMO2 = replace(LLAMA, sublayers=rows(f"attn:branch=self_attn,output=post_attention_layernorm mlp:branch=mlp,{OUT}"))
PHI3 = replace(LLAMA, sublayers=rows(f"{ATTN},dropout=resid_attn_dropout {MLP},dropout=resid_mlp_dropout"))
GPT2 = Stack("decoder", "h", rows("attn:norm=ln_1,branch=attn mlp:norm=ln_2,branch=mlp"), "wte", None, "ln_f", "layer")
IDENTITY_FIRST = rows("attn:norm=attn_norm,branch=attn mlp:norm=mlp_norm,branch=mlp")
"""The first block's attn_norm is an nn.Identity: what it reads comes from the norm at the entry."""
MODERNBERT = Stack(
    "encoder", "layers", IDENTITY_FIRST, "embeddings.tok_embeddings", "embeddings.norm", "final_norm", "layer"
)
PICTURES = (
    "attn:norm=layernorm_before,branch=attention,dropout=dropout mlp:norm=layernorm_after,branch=mlp,dropout=dropout"
)
VIT = Stack("encoder", "layers", rows(PICTURES), "embeddings", exit="layernorm", norm="layer")


def gpt2(config: Any) -> tuple[Stack, ...]:
    if not getattr(config, "add_cross_attention", False):
        return (GPT2,)
    attention, mlp = GPT2.sublayers
    names = ("encoder_hidden_states", "encoder_attention_mask", "attention_mask")
    cross = sublayer("cross:norm=ln_cross_attn,branch=crossattention", **{name: name for name in names})
    return (replace(GPT2, sublayers=(attention, cross, mlp)),)


def gpt_neox(config: Any) -> tuple[Stack, ...]:
    first = "attn:norm=input_layernorm,branch=attention,dropout=post_attention_dropout"
    text = f"{first} {MLP},dropout=post_mlp_dropout"
    if config.use_parallel_residual:
        text = (
            "parallel:norm=input_layernorm+post_attention_layernorm,branch=attention+mlp,"
            "dropout=post_attention_dropout+post_mlp_dropout"
        )
    return (Stack("decoder", "layers", rows(text), "embed_in", exit="final_layer_norm", norm="layer"),)


def stablelm(config: Any) -> tuple[Stack, ...]:
    side_by_side = "parallel:norm=input_layernorm,branch=self_attn+mlp,dropout=+dropout"
    text = side_by_side if config.use_parallel_residual else f"{ATTN} {MLP},dropout=dropout"
    return (replace(LLAMA, sublayers=rows(text), norm="layer"),)


def falcon(config: Any) -> tuple[Stack, ...]:
    """Side by side under one norm (7B) or two (40B, 180B), or one after the other (RW)."""
    new, first = config.new_decoder_architecture, "attn:norm=input_layernorm,branch=self_attention"
    text = f"{first},dropout=config.attention_dropout {MLP},dropout=hidden_dropout"
    if new or config.parallel_attn:
        norms = "ln_attn+ln_mlp" if new and config.num_ln_in_parallel_attn in (None, 2) else "input_layernorm"
        text = f"parallel:norm={norms},branch=self_attention+mlp"
    returns = (rows(text)[0].kind,)
    return (Stack("decoder", "h", rows(text), "word_embeddings", None, "ln_f", "layer", returns=returns),)


def bert(config: Any) -> tuple[Stack, ...]:
    text = "{0}:branch={1}.self>{1}.output.dense,dropout={1}.output.dropout,after={1}.output.LayerNorm"
    sublayers = [
        sublayer(text.format("attn", "attention")),
        sublayer("mlp:branch=intermediate>output.dense,dropout=output.dropout,after=output.LayerNorm"),
    ]
    if config.is_decoder and config.add_cross_attention:
        names = {"encoder_hidden_states": "encoder_hidden_states", "attention_mask": "encoder_attention_mask"}
        sublayers.insert(1, sublayer(text.format("cross", "crossattention"), **names))
    name = "decoder" if config.is_decoder else "encoder"
    words = "embeddings.word_embeddings"
    return (Stack(name, "encoder.layer", tuple(sublayers), words, entry="embeddings.LayerNorm", norm="layer"),)


def t5(config: Any) -> tuple[Stack, ...]:
    """Encoder and decoder; RMS norms without an offset, on two streams that start from one embedding."""

    def part(kind: str, place: int, module: str, **names: str) -> Sublayer:
        text = "{0}:norm=layer.{1}.layer_norm,branch=layer.{1}.{2},dropout=layer.{1}.dropout"
        return sublayer(text.format(kind, place, module), **names)

    attention, mlp = part("attn", 0, "SelfAttention", mask="attention_mask"), "DenseReluDense"
    names = {"key_value_states": "encoder_hidden_states", "position_bias": "encoder_decoder_position_bias"}
    cross = part("cross", 1, "EncDecAttention", mask="encoder_attention_mask", **names)
    parts = {"encoder": (attention, part("mlp", 1, mlp)), "decoder": (attention, cross, part("mlp", 2, mlp))}
    return tuple(
        Stack(name, f"{name}.block", sublayers, "shared", exit=f"{name}.final_layer_norm", returns=("attn", "cross"))
        for name, sublayers in parts.items()
    )


FAMILIES: dict[str, Stack | Callable[[Any], tuple[Stack, ...]]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral"), LLAMA),
    "gemma2": GEMMA,
    **dict.fromkeys(("olmo2", "olmo3"), OLMO2),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), gpt2),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), bert),
    "olmo": replace(LLAMA, norm="layer", eps=1e-5),
    "gpt_neox": gpt_neox,
    "phi3": PHI3,
    "stablelm": stablelm,
    "starcoder2": replace(LLAMA, norm="layer"),
    "falcon": falcon,
    "modernbert": MODERNBERT,
    "vit": VIT,
    "t5": t5,
}
"""The stack of a family by `config.model_type`, or what finds its stacks by the configuration: encoders, and the
architectures that an export can have. Other causal models are recognised (recognise.py)."""


def family_of(config: Any) -> Any:
    """The model type; of a model that a scheme was applied to, the one that it had before."""
    return getattr(config, "stock_type", None) or getattr(config, "model_type", None)


def has_table(config: Any) -> bool:
    """True where `anatomy` knows the family, or the configuration holds what was recognised, or is none."""
    return hasattr(config, "stock_stack") or family_of(config) in (*FAMILIES, None)


def anatomy(config: Any) -> tuple[Stack, ...]:
    """The stacks of a model from its Hugging Face configuration: one, or encoder and decoder.

    Raises ConfigError for a model type that is not in the table.
    """
    if saved := getattr(config, "stock_stack", None):
        return (Stack.from_dict(saved),)
    name = family_of(config)
    if name not in FAMILIES:
        raise ConfigError(f"unknown model type {name!r} (valid: {', '.join(sorted(FAMILIES))}); or {BY_HAND}")
    family = FAMILIES[name]
    return (family,) if isinstance(family, Stack) else family(config)


def root_stacks(model: Any, stacks: Iterable[Stack]) -> Iterator[tuple[Stack, str]]:
    """Those of the stacks that a model (an nn.Module, with a head or without) has, each with the path of the base model
    that its paths start from: the shortest that ends in the stack's blocks; the empty string is the model itself."""
    names = [name for name, _ in model.named_modules()]
    for stack in stacks:
        found = [name for name in names if f".{name}".endswith(f".{stack.blocks}")]
        if found:
            yield stack, min(found, key=len)[: -len(stack.blocks)].rstrip(".")


def blocks_of(model: Any, stack: Stack, base: str) -> list[Any]:
    """The blocks of a stack, whose paths start from `base`."""
    path = join_path(base, stack.blocks)
    found = list(model.get_submodule(path).children())
    if not found:
        raise ConfigError(f"{path} holds no blocks")
    return found


def join_path(*paths: str) -> str:
    """A dotted path from its parts; empty ones are left out."""
    return ".".join(path for path in paths if path)
