"""Where the residual sites of Hugging Face models are: one entry per `model_type`, checked against transformers 5.23.

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
    scale: the block's own number that multiplies u before the addition (Granite), or None.
    """

    modules: tuple[str, ...]
    norm: str | None = None
    dropout: str | None = None
    scale: str | None = None

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

    @classmethod
    def by_hand(
        cls, blocks: str, sublayers: Iterable[str], *, name: str = "decoder", entry: str | None = None,
        exit: str | None = None,
    ) -> Stack:  # fmt: skip
        """For a model that the table does not have: see `sublayer` for the text of one."""
        parsed = tuple(sublayer(text) for text in sublayers)
        if not blocks or not parsed:
            raise ConfigError("modules by hand need the path of the list of blocks and at least one sub-layer")
        return cls(name, blocks, parsed, entry=entry, exit=exit, norm="")


def sublayer(text: str) -> Sublayer:
    """`attn:norm=ln_1,branch=attn` as a Sublayer.

    Fields: norm, branch, output, after, dropout. Modules that run one after the other are joined by > (fc1>act>fc2),
    branches side by side by + (attn+mlp, with one norm or as many: ln_1+ln_2).
    """
    kind, _, rest = text.partition(":")
    fields = {name: value for name, _, value in (part.partition("=") for part in rest.split(",") if part)}
    valid = ("norm", "branch", "output", "after", "dropout")
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
    spread = {}
    for name in ("norm", "dropout"):
        given: list[str | None] = list(fields[name].split("+")) if name in fields else [None]
        if len(given) not in (1, len(chains)):
            raise ConfigError(f"sub-layer {text!r}: {len(given)} paths of {name} for {len(chains)} branches")
        spread[name] = given if len(given) == len(chains) else given * len(chains)
    branches = tuple(map(Branch, chains, spread["norm"], spread["dropout"]))
    return Sublayer(kind, branches, fields.get("output"), fields.get("after"))


def _pre(attention: str, mlp: str, first: str, second: str, dropout: str | None = None) -> tuple[Sublayer, ...]:
    return (
        Sublayer("attn", (Branch((attention,), first, dropout),)),
        Sublayer("mlp", (Branch((mlp,), second, dropout),)),
    )


LLAMA = Stack(
    "decoder", "layers", _pre("self_attn", "mlp", "input_layernorm", "post_attention_layernorm"),
    embedding="embed_tokens", exit="norm",
)  # fmt: skip
GEMMA = replace(
    LLAMA,
    sublayers=(
        Sublayer("attn", (Branch(("self_attn",), "input_layernorm"),), output="post_attention_layernorm"),
        Sublayer("mlp", (Branch(("mlp",), "pre_feedforward_layernorm"),), output="post_feedforward_layernorm"),
    ),
    gain_offset=1.0,
)
OLMO2 = replace(
    LLAMA,
    sublayers=(
        Sublayer("attn", (Branch(("self_attn",)),), output="post_attention_layernorm"),
        Sublayer("mlp", (Branch(("mlp",)),), output="post_feedforward_layernorm"),
    ),
)
GPT2 = Stack("decoder", "h", _pre("attn", "mlp", "ln_1", "ln_2"), embedding="wte", exit="ln_f", norm="layer")
GPTJ = replace(
    GPT2,
    sublayers=(Sublayer("parallel", (Branch(("attn",), "ln_1"), Branch(("mlp",), "ln_1"))),),
    returns=("parallel",),
)
PHI = Stack(
    "decoder", "layers",
    (
        Sublayer("parallel", (
            Branch(("self_attn",), "input_layernorm", "resid_dropout"),
            Branch(("mlp",), "input_layernorm", "resid_dropout"),
        )),
    ),
    embedding="embed_tokens", exit="final_layernorm", norm="layer",
)  # fmt: skip
PHI3 = replace(
    LLAMA,
    sublayers=(
        Sublayer("attn", (Branch(("self_attn",), "input_layernorm", "resid_attn_dropout"),)),
        Sublayer("mlp", (Branch(("mlp",), "post_attention_layernorm", "resid_mlp_dropout"),)),
    ),
)
GRANITE = replace(
    LLAMA,
    sublayers=tuple(
        replace(place, branches=tuple(replace(branch, scale="residual_multiplier") for branch in place.branches))
        for place in LLAMA.sublayers
    ),
)
MODERNBERT = Stack(
    "encoder", "layers", _pre("attn", "mlp", "attn_norm", "mlp_norm"), embedding="embeddings.tok_embeddings",
    entry="embeddings.norm", exit="final_norm", norm="layer",
)  # fmt: skip
"""The first block's attn_norm is an nn.Identity: what it reads comes from the norm at the entry."""
VIT = Stack(
    "encoder", "layers", _pre("attention", "mlp", "layernorm_before", "layernorm_after", "dropout"),
    embedding="embeddings", exit="layernorm", norm="layer",
)  # fmt: skip


def gpt2(config: Any) -> tuple[Stack, ...]:
    if not getattr(config, "add_cross_attention", False):
        return (GPT2,)
    attention, mlp = GPT2.sublayers
    names = ("encoder_hidden_states", "encoder_attention_mask", "attention_mask")
    cross = Sublayer("cross", (Branch(("crossattention",), "ln_cross_attn"),), arguments={n: n for n in names})
    return (replace(GPT2, sublayers=(attention, cross, mlp)),)


def gpt_neox(config: Any) -> tuple[Stack, ...]:
    attention = Branch(("attention",), "input_layernorm", "post_attention_dropout")
    mlp = Branch(("mlp",), "post_attention_layernorm", "post_mlp_dropout")
    sequential = (Sublayer("attn", (attention,)), Sublayer("mlp", (mlp,)))
    sublayers = (Sublayer("parallel", (attention, mlp)),) if config.use_parallel_residual else sequential
    return (Stack("decoder", "layers", sublayers, "embed_in", exit="final_layer_norm", norm="layer"),)


def stablelm(config: Any) -> tuple[Stack, ...]:
    attention, mlp = (Branch((name,), "input_layernorm") for name in ("self_attn", "mlp"))
    mlp = replace(mlp, dropout="dropout")
    second = replace(mlp, norm="post_attention_layernorm")
    sequential = (Sublayer("attn", (attention,)), Sublayer("mlp", (second,)))
    sublayers = (Sublayer("parallel", (attention, mlp)),) if config.use_parallel_residual else sequential
    return (replace(LLAMA, sublayers=sublayers, norm="layer"),)


def falcon(config: Any) -> tuple[Stack, ...]:
    """Side by side under one norm (7B) or two (40B, 180B), or one after the other (RW)."""
    new = config.new_decoder_architecture
    if (new or config.parallel_attn) and config.hidden_dropout:
        raise ConfigError(
            "falcon side by side with hidden_dropout: one dropout over both branches, which no row here has"
        )
    two = new and config.num_ln_in_parallel_attn in (None, 2)
    first, second = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "input_layernorm")
    attention, mlp = Branch(("self_attention",), first), Branch(("mlp",), second)
    sublayers: tuple[Sublayer, ...] = (Sublayer("parallel", (attention, mlp)),)
    if not (new or config.parallel_attn):
        attention = replace(attention, dropout="config.attention_dropout")
        mlp = Branch(("mlp",), "post_attention_layernorm", "hidden_dropout")
        sublayers = (Sublayer("attn", (attention,)), Sublayer("mlp", (mlp,)))
    returns = (sublayers[0].kind,)
    return (Stack("decoder", "h", sublayers, "word_embeddings", exit="ln_f", norm="layer", returns=returns),)


def opt(config: Any) -> tuple[Stack, ...]:
    """Pre-Norm; Post-Norm without a norm at the end where do_layer_norm_before is off (the 350m)."""
    first, second = "self_attn_layer_norm", "final_layer_norm"
    parts = (("attn", ("self_attn",), first), ("mlp", ("fc1", "activation_fn", "fc2"), second))
    before = config.do_layer_norm_before
    sublayers = tuple(
        Sublayer(kind, (Branch(modules, norm if before else None, "dropout"),), after=None if before else norm)
        for kind, modules, norm in parts
    )
    last = "decoder.final_layer_norm" if before and not config._remove_final_layer_norm else None
    return (Stack("decoder", "decoder.layers", sublayers, "decoder.embed_tokens", exit=last, norm="layer"),)


def bert(config: Any) -> tuple[Stack, ...]:
    def attention(kind: str, path: str) -> Sublayer:
        branch = Branch((f"{path}.self", f"{path}.output.dense"), dropout=f"{path}.output.dropout")
        names = {"encoder_hidden_states": "encoder_hidden_states", "attention_mask": "encoder_attention_mask"}
        return Sublayer(kind, (branch,), None, f"{path}.output.LayerNorm", names if kind == "cross" else {})

    mlp = Branch(("intermediate", "output.dense"), dropout="output.dropout")
    cross = (attention("cross", "crossattention"),) if config.is_decoder and config.add_cross_attention else ()
    sublayers = (attention("attn", "attention"), *cross, Sublayer("mlp", (mlp,), after="output.LayerNorm"))
    name = "decoder" if config.is_decoder else "encoder"
    words = "embeddings.word_embeddings"
    return (Stack(name, "encoder.layer", sublayers, words, entry="embeddings.LayerNorm", norm="layer"),)


def t5(config: Any) -> tuple[Stack, ...]:
    """Encoder and decoder; RMS norms without an offset, on two streams that start from one embedding."""

    def part(kind: str, place: int, module: str, **names: str) -> Sublayer:
        path = f"layer.{place}"
        branch = Branch((f"{path}.{module}",), f"{path}.layer_norm", f"{path}.dropout")
        return Sublayer(kind, (branch,), arguments=names)

    attention, mlp = part("attn", 0, "SelfAttention", mask="attention_mask"), "DenseReluDense"
    cross = part(
        "cross", 1, "EncDecAttention", mask="encoder_attention_mask", key_value_states="encoder_hidden_states",
        position_bias="encoder_decoder_position_bias",
    )  # fmt: skip
    parts = {"encoder": (attention, part("mlp", 1, mlp)), "decoder": (attention, cross, part("mlp", 2, mlp))}
    return tuple(
        Stack(name, f"{name}.block", sublayers, "shared", exit=f"{name}.final_layer_norm", returns=("attn", "cross"))
        for name, sublayers in parts.items()
    )


def gemma3(config: Any) -> tuple[Stack, ...]:
    """The language model inside the one that sees pictures too."""
    blocks, embedding, last = (f"language_model.{path}" for path in (GEMMA.blocks, GEMMA.embedding, GEMMA.exit))
    return (replace(GEMMA, blocks=blocks, embedding=embedding, exit=last),)


FAMILIES: dict[str, Callable[[Any], tuple[Stack, ...]]] = {
    **{
        name: lambda config: (LLAMA,)
        for name in ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral", "smollm3")
    },
    "gemma": lambda config: (replace(LLAMA, gain_offset=1.0),),
    **{name: lambda config: (GEMMA,) for name in ("gemma2", "gemma3_text")},
    "granite": lambda config: (GRANITE,),
    "olmo": lambda config: (replace(LLAMA, norm="layer", eps=1e-5),),
    **{name: lambda config: (OLMO2,) for name in ("olmo2", "olmo3")},
    "gemma3": gemma3,
    "gpt2": gpt2,
    "gpt_bigcode": gpt2,
    "gpt_neo": lambda config: (replace(GPT2, returns=("attn",)),),
    "gptj": lambda config: (GPTJ,),
    "gpt_neox": gpt_neox,
    "opt": opt,
    "phi": lambda config: (PHI,),
    "phi3": lambda config: (PHI3,),
    "stablelm": stablelm,
    "starcoder2": lambda config: (replace(LLAMA, norm="layer"),),
    "falcon": falcon,
    "bert": bert,
    "roberta": bert,
    "xlm-roberta": bert,
    "modernbert": lambda config: (MODERNBERT,),
    "vit": lambda config: (VIT,),
    "t5": t5,
}
"""What the table has, by `config.model_type`."""


def anatomy(config: Any) -> tuple[Stack, ...]:
    """The stacks of a model from its Hugging Face configuration: one, or encoder and decoder.

    Raises ConfigError for a model type that is not in the table.
    """
    name = getattr(config, "stock_type", None) or getattr(config, "model_type", None)  # what a scheme was applied to
    if name not in FAMILIES:
        raise ConfigError(f"{unknown('model type', str(name), FAMILIES)}; or {BY_HAND}")
    return FAMILIES[name](config)


def root(model: Any, stack: Stack) -> str | None:
    """Path inside a model (an nn.Module, with a head or without) of the base model that the stack's paths start from.

    The empty string is the model itself; None if the model does not have this stack (T5's encoder alone). The
    shortest path that ends in the stack's blocks wins.
    """
    names = [name for name, _ in model.named_modules() if name == stack.blocks or name.endswith(f".{stack.blocks}")]
    if not names:
        return None
    return min(names, key=len)[: -len(stack.blocks)].rstrip(".")


def rooted(model: Any, stacks: Iterable[Stack]) -> Iterator[tuple[Stack, str]]:
    """Those of the stacks that a model has, each with the path of the base model that its paths start from."""
    for stack in stacks:
        base = root(model, stack)
        if base is not None:
            yield stack, base


def blocks_of(model: Any, stack: Stack, base: str) -> list[Any]:
    """The blocks of a stack, whose paths start from `base`."""
    path = join(base, stack.blocks)
    found = list(model.get_submodule(path).children())
    if not found:
        raise ConfigError(f"{path} holds no blocks")
    return found


def join(*paths: str) -> str:
    """A dotted path from its parts; empty ones are left out."""
    return ".".join(path for path in paths if path)
