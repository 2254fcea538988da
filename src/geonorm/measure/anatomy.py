"""Where the sub-layers of a model are: a `Stack` of blocks, each a list of `Sublayer`s of one or more `Branch`es.

A sub-layer of a block of transformers is

    x' = after(x + output(dropout(branch(norm(x))) + ... other branches side by side))

with norm (read before the branch), output (on the update, inside the residual), after (on the stream) and dropout each
there or not; or a module of the block adds with learned factors (`joined`). The probe and `hf.apply` find the
sub-layers of a model by its stack. Causal models are recognised by numbers (`recognise`). Some encoders, vision
transformers and encoder-decoders, whose blocks add to the stream inside modules of theirs, are listed here by name, as
of transformers 5.24. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CACHES = {"cache": "cache", "past_key_values": "past_key_values"}
"""Both names of the cache of keys and values in releases of transformers."""
MASKED = {"attention_mask": "attention_mask", **CACHES}


@dataclass(frozen=True)
class Branch:
    """A sub-layer's function. Paths are relative to the block.

    modules: run one after the other; the output of the last (its first entry if a tuple) is the raw update u. Dropout
    that is part of these modules (GPT-2, GPT-J, GPT-Neo) is not listed.
    norm: read before the first module, or None.
    dropout: the path of a Dropout between u and the addition, or its probability, or None.
    scale: the block's own number that multiplies u before the addition (Granite), or None.
    arguments: those of the block's arguments that its first module gets, {its name: the block's name}. Where there are
    any, it also gets those that the block takes by **kwargs.
    """

    modules: tuple[str, ...]
    norm: str | None = None
    dropout: str | float | None = None
    scale: float | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sublayer:
    """One sub-layer: x' = after(x + output(sum of branches)). Paths are relative to the block.

    Sub-layers of a block are in the order of the computation; a cross sub-layer runs only where there is an encoder's
    output. Branches of `parallel` are attention, then MLP; both read x, and share one norm where the names are equal.
    """

    kind: str
    branches: tuple[Branch, ...]
    output: str | None = None
    after: str | None = None
    joined: str | None = None
    """The module that gets stream and update and returns the next stream (Muse's gate)."""
    carried: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What the scheme learns beside gains of norms, by our name: the path of the block's tensor, and how that becomes
    ours (`rebuild.ARRANGED`)."""

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
        """The sub-layer in one line: attn:norm=ln_1,branch=attn. > joins modules in sequence, + parallel branches."""
        chains = "+".join(">".join(branch.modules) for branch in self.branches)
        norms = "+".join(dict.fromkeys(branch.norm for branch in self.branches if branch.norm))
        parts = {"norm": norms, "branch": chains, "output": self.output, "after": self.after, "joined": self.joined}
        return f"{self.kind}:" + ",".join(f"{name}={value}" for name, value in parts.items() if value)

    @property
    def norms(self) -> dict[str, str]:
        """Every norm of the site by path: its role input, output or stream."""
        inputs = {branch.norm: "input" for branch in self.branches if branch.norm}
        return inputs | {path: role for path, role in ((self.output, "output"), (self.after, "stream")) if path}


@dataclass(frozen=True)
class Stack:
    """A list of blocks over one residual stream. Paths are relative to the base model.

    name          of the stream: decoder or encoder
    blocks        path of the list of blocks
    sublayers     those of every block
    embedding     the token (or patch) embedding; None if unknown
    entry         norm between embedding and first block, or None
    exit          norm after the last block, or None
    norm          rms or layer
    gain_offset   what is added to a stored gain (1 for Gemma: the norm multiplies by 1 + weight)
    exit_offset   the same at the exit
    eps           of norms that have none to ask for (OLMo)
    returns       what the block returns beside the stream, as `extra_results` names it: None where a sub-layer did
                  not run
    layers        the sub-layers of each block where blocks differ, else empty
    tupled        True where a block returns a tuple though there is nothing beside the stream
    scheme        the rule of its sub-layers, as a string
    """

    name: str
    blocks: str
    sublayers: tuple[Sublayer, ...]
    embedding: str | None = None
    entry: str | None = None
    exit: str | None = None
    norm: str = "rms"
    gain_offset: float = 0.0
    exit_offset: float = 0.0
    eps: float = 1e-6
    returns: tuple[str, ...] = ()
    layers: tuple[tuple[Sublayer, ...], ...] = ()
    tupled: bool = False
    scheme: str | None = None

    @property
    def count(self) -> int:
        """Sub-layers of a block, two at least: those by which sites are counted."""
        return max(2, *(len(layer) for layer in self.layers or (self.sublayers,)))

    def of(self, layer: int) -> tuple[Sublayer, ...]:
        """The sub-layers of a block."""
        return self.layers[layer] if self.layers else self.sublayers

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Stack:
        """The inverse of dataclasses.asdict, also through JSON."""

        def read(layer: Any) -> tuple[Sublayer, ...]:
            return tuple(Sublayer(**{**each, "branches": tuple(map(branch, each["branches"]))}) for each in layer)

        def branch(one: Any) -> Branch:
            return Branch(**{**one, "modules": tuple(one["modules"])})

        lists = {"returns": tuple(saved["returns"]), "layers": tuple(map(read, saved["layers"]))}
        return cls(**{**saved, **lists, "sublayers": read(saved["sublayers"])})


TURNED = {"position_embeddings": "position_embeddings", "attention_mask": "attention_mask"}
MODERNBERT = Stack(
    "encoder",
    "layers",
    (
        Sublayer("attn", (Branch(("attn",), "attn_norm", arguments=TURNED),)),
        Sublayer("mlp", (Branch(("mlp",), "mlp_norm"),)),
    ),
    "embeddings.tok_embeddings",
    "embeddings.norm",
    "final_norm",
    "layer",
    scheme="pre(entry=embedding)",
)
"""The first block's attn_norm is an nn.Identity: what it reads comes from the norm at the entry."""
VIT = Stack(
    "encoder",
    "layers",
    (
        Sublayer("attn", (Branch(("attention",), "layernorm_before", "dropout", arguments=MASKED),)),
        Sublayer("mlp", (Branch(("mlp",), "layernorm_after", "dropout"),)),
    ),
    "embeddings",
    exit="layernorm",
    norm="layer",
    scheme="pre(entry=embedding)",
)


def bert(config: Any) -> tuple[Stack, ...]:
    def attention(kind: str, path: str, arguments: Mapping[str, str]) -> Sublayer:
        modules = (f"{path}.self", f"{path}.output.dense")
        branch = Branch(modules, dropout=f"{path}.output.dropout", arguments=arguments)
        return Sublayer(kind, (branch,), after=f"{path}.output.LayerNorm")

    feed = Branch(("intermediate", "output.dense"), dropout="output.dropout")
    sublayers = [attention("attn", "attention", MASKED), Sublayer("mlp", (feed,), after="output.LayerNorm")]
    if config.is_decoder and config.add_cross_attention:
        names = {"encoder_hidden_states": "encoder_hidden_states", "attention_mask": "encoder_attention_mask", **CACHES}
        sublayers.insert(1, attention("cross", "crossattention", names))
    name, rule = "decoder" if config.is_decoder else "encoder", "post(entry=embedding)"
    words, entry = "embeddings.word_embeddings", "embeddings.LayerNorm"
    return (Stack(name, "encoder.layer", tuple(sublayers), words, entry, norm="layer", scheme=rule),)


def t5(config: Any) -> tuple[Stack, ...]:
    """Encoder and decoder; RMS norms without an offset, on two streams that start from one embedding."""

    def part(kind: str, number: int, module: str, **arguments: str) -> Sublayer:
        layer = f"layer.{number}"
        names = {**arguments, **CACHES} if arguments else {}
        branch = Branch((f"{layer}.{module}",), f"{layer}.layer_norm", f"{layer}.dropout", arguments=names)
        return Sublayer(kind, (branch,))

    attention = part("attn", 0, "SelfAttention", mask="attention_mask", position_bias="position_bias")
    bias, states = "encoder_decoder_position_bias", "encoder_hidden_states"
    cross = part(
        "cross", 1, "EncDecAttention", mask="encoder_attention_mask", key_value_states=states, position_bias=bias
    )
    mlp = "DenseReluDense"
    parts = {"encoder": (attention, part("mlp", 1, mlp)), "decoder": (attention, cross, part("mlp", 2, mlp))}
    ends, rule = ("attn", "cross"), "pre(entry=embedding)"
    return tuple(
        Stack(name, f"{name}.block", part, "shared", exit=f"{name}.final_layer_norm", returns=ends, scheme=rule)
        for name, part in parts.items()
    )


FAMILIES: dict[str, Callable[[Any], tuple[Stack, ...]]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "ernie"), bert),
    **dict.fromkeys(("data2vec-text", "bert-generation"), bert),
    "modernbert": lambda config: (MODERNBERT,),
    "vit": lambda config: (VIT,),
    "t5": t5,
}
"""By `config.model_type`, the function that makes the stacks of a family from a configuration."""


def stacks_by_name(config: Any) -> tuple[Stack, ...]:
    """The stacks of a model from its Hugging Face configuration: those stored there when a scheme was applied, or those
    of its family. Empty where the model must be recognised instead."""
    if saved := getattr(config, "stock_stacks", None):
        return tuple(map(Stack.from_dict, saved))
    family = FAMILIES.get(getattr(config, "model_type", ""))
    return family(config) if family is not None else ()


def root_stacks(model: Any, stacks: Iterable[Stack]) -> Iterator[tuple[Stack, str]]:
    """The stacks that a model (an nn.Module, with or without a head) has, each with the path of the base model, from
    which its own paths start: the shortest below which its blocks lie. The empty string is the model itself."""
    names = [name for name, _ in model.named_modules()]
    for stack in stacks:
        matching = [name for name in names if f".{name}".endswith(f".{stack.blocks}")]
        if matching:
            yield stack, min(matching, key=len)[: -len(stack.blocks)].rstrip(".")


def blocks_of(model: Any, stack: Stack, base: str) -> list[Any]:
    """The blocks of a stack, whose paths start from `base`."""
    return list(model.get_submodule(join_path(base, stack.blocks)).children())


def extra_results(kind: str, result: Any) -> dict[str, Any]:
    """What a sub-layer's module returns beside its update, by name: that of the kind, then attn.2, ... (GLM-5 hands the
    tokens that its attention chose to the next block)."""
    return {
        kind if place == 1 else f"{kind}.{place}": value
        for place, value in enumerate(result if isinstance(result, tuple) else ())
        if place
    }


def join_path(*paths: str) -> str:
    """A dotted path from its parts; empty ones are left out."""
    return ".".join(path for path in paths if path)
