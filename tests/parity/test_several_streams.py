"""Our schemes of several streams against the layers of transformers that are built with them, between entry and exit:
what leaves, and all gradients. Attention and experts are toys.

transformers adds eps to the weights and in every Sinkhorn step, which the paper of mHC does not: it is set to 0 here.
It keeps the transpose of the mixing matrix.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site
from geonorm.norms import NormSpec
from geonorm.residual import StreamEnd

from ..rows import each
from .test_recorded import DIM, TOKENS, Maps, Mixer, wave

N, EPS, DEPTH = 4, 1e-6, 4


class Returns(nn.Module):
    """A toy in the place of their attention or experts: takes what they are given, returns what they return."""

    def __init__(self, toy: nn.Module, rest: tuple[None, ...] = ()) -> None:
        super().__init__()
        self.toy, self.rest = toy, rest

    def forward(self, *args: Tensor, **given: Any) -> Any:
        others = [given[name] for name in ("key_hidden_states", "value_hidden_states") if name in given]
        u = self.toy(args[0] if args else given["hidden_states"], *others)
        return (u, *self.rest) if self.rest else u


class Family(nn.Module):
    """Layers of a family of transformers, without their __init__, and an exit. `weights`: our parameters at a sub-layer
    of each kind and at the exit, and theirs; `arranged`: how theirs become ours, where they are laid out otherwise;
    `offsets`: what is then added."""

    scheme: str
    weights: ClassVar[dict[str, dict[str, str]]]
    kind, rest = "DecoderLayer", (None,)
    arranged: ClassVar[dict[str, Callable[[Tensor], Tensor]]] = {}
    offsets: ClassVar[dict[str, float]] = {}

    def __init__(self, family: str, prefix: str) -> None:
        super().__init__()
        self.files = pytest.importorskip(f"transformers.models.{family}.modeling_{family}")
        self.prefix = prefix
        self.layers = nn.ModuleList(self.layer(n) for n in range(DEPTH))

    def their(self, name: str, *args: Any, **rest: Any) -> nn.Module:
        module: nn.Module = getattr(self.files, self.prefix + name)(*args, **rest)
        return module

    def layer(self, n: int) -> nn.Module:
        kind = getattr(self.files, self.prefix + self.kind)
        layer: nn.Module = kind.__new__(kind)
        nn.Module.__init__(layer)
        layer.self_attn = Returns(Mixer(20.0 + n), self.rest)
        layer.mlp = Returns(Maps(30.0 + n))
        return layer


class Inkling(Family):
    """Blocks of two layers: `attnres(blocks=2)`."""

    kind, scheme = "SlidingDecoderLayer", "attnres(blocks=2, values=norm, entry=embedding)"
    weights: ClassVar = {
        "attn": {"input.weight": "input_layernorm.weight", "recall.query": "attention_input.query"},
        "mlp": {"input.weight": "post_attention_layernorm.weight", "recall.query": "mlp_input.query"},
        "exit": {"norm.weight": "norm.weight", "recall.query": "final_input.query"},
    }

    def __init__(self) -> None:
        super().__init__("inkling2", "Inkling2")
        self.norm, self.final_input = self.their("RMSNorm", DIM, EPS), self.recall()

    def recall(self, **rest: int) -> nn.Module:
        config = SimpleNamespace(hidden_size=DIM, _attn_implementation="eager")
        return self.their("BlockAttentionResidual", config, **rest)

    def layer(self, n: int) -> nn.Module:
        layer = super().layer(n)
        layer.is_block_boundary = n % 2 == 0
        layer.attention_input, layer.mlp_input = self.recall() if n else None, self.recall()
        layer.input_layernorm, layer.post_attention_layernorm = (self.their("RMSNorm", DIM, EPS) for _ in range(2))
        layer.post_attention_convolution = layer.post_mlp_convolution = Returns(nn.Identity())
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """As Inkling2TextModel.forward: a block's sum joins the states behind the first layer of the next."""
        states = x.new_zeros(*x.shape[:-1], 0, DIM)
        for layer in self.layers:
            after = layer(x, states)
            if layer.is_block_boundary:
                states = torch.cat((states, x.unsqueeze(-2)), -2)
            x = after
        return self.norm(self.final_input(states, x)[0])


class ThreeMixers(Mixer):
    """A toy whose three inputs differ in what they do."""

    def forward(self, y: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return super().forward(y) * torch.sigmoid(keys.cumsum(-2)) + 0.3 * torch.tanh(values)


class InklingFull(Inkling):
    """Its layers of full attention, which read for queries, keys and values apart."""

    kind, scheme = "FullDecoderLayer", "attnres(blocks=2, values=norm, queries=qkv, entry=embedding)"
    three: ClassVar = {
        "input.weight": "q_input_layernorm.weight", "key.weight": "k_input_layernorm.weight",
        "value.weight": "v_input_layernorm.weight",
    }  # fmt: skip
    weights: ClassVar = Inkling.weights | {"attn": {"recall.query": "attention_input.query", **three}}

    def layer(self, n: int) -> nn.Module:
        layer = super().layer(n)
        layer.attention_input = self.recall(num_queries=3) if n else None
        for path in self.three.values():
            setattr(layer, path.removesuffix(".weight"), self.their("RMSNorm", DIM, EPS))
        layer.self_attn = Returns(ThreeMixers(20.0 + n), self.rest)
        return layer


def transposed(rows: Tensor) -> Tensor:
    """Their rows of reading, writing and mixing, the mixing matrix transposed."""
    mixing = rows[2 * N :].view(N, N, -1).transpose(0, 1).reshape(N * N, -1)
    return torch.cat((rows[: 2 * N], mixing.view(N * N, *rows.shape[1:])))


class Hyper(Family):
    """DeepSeek-V4."""

    scheme = "mhc(head=learned, entry=embedding)"
    arranged: ClassVar = {"mapping.weight": transposed, "mapping.bias": transposed}
    connection: ClassVar = {"mapping.weight": "fn", "mapping.bias": "base", "mapping.scale": "scale"}
    weights: ClassVar = {
        "attn": {"input.weight": "input_layernorm.weight", **{a: f"attn_hc.{b}" for a, b in connection.items()}},
        "mlp": {"input.weight": "post_attention_layernorm.weight", **{a: f"ffn_hc.{b}" for a, b in connection.items()}},
        "exit": {
            "norm.weight": "norm.weight", "collapse.weight": "head.hc_fn", "collapse.bias": "head.hc_base",
            "collapse.scale": "head.hc_scale",
        },
    }  # fmt: skip

    def __init__(self, family: str = "deepseek_v4", prefix: str = "DeepseekV4") -> None:
        self.config = SimpleNamespace(
            hidden_size=DIM, hc_mult=N, hc_sinkhorn_iters=20, hc_eps=0.0, hc_magnitude=2.0, rms_norm_eps=EPS
        )
        super().__init__(family, prefix)
        self.norm, self.head = self.their("RMSNorm", DIM, EPS), self.their("HyperHead", self.config)

    def layer(self, n: int) -> nn.Module:
        layer = super().layer(n)
        layer.block_type = "attention"
        layer.attn_hc, layer.ffn_hc = (self.their("HyperConnection", self.config) for _ in range(2))
        layer.input_layernorm, layer.post_attention_layernorm = (self.their("RMSNorm", DIM, EPS) for _ in range(2))
        return layer

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-2).repeat(1, 1, N, 1)
        for layer in self.layers:
            x = layer(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.norm(self.head(x))


class Mean(Hyper):
    """GLM-5.3-Flash."""

    scheme, rest = "mhc(head=mean, entry=embedding)", (None, None)

    def __init__(self) -> None:
        super().__init__("glm5_next", "Glm5NextText")

    def their(self, name: str, *args: Any, **rest: Any) -> nn.Module:
        return super().their(name) if name == "HyperHead" else super().their(name, *args, **rest)


class Identity(Hyper):
    """Hy4."""

    scheme, rest = "mhc(mix=identity, head=learned, entry=embedding)", (None, None)
    arranged: ClassVar = {"mapping.scale": lambda scale: torch.cat((scale, 0 * scale[:1]))}

    def __init__(self) -> None:
        super().__init__("hy_v4", "HYV4")


class Gated(Family):
    """Qwen4-Exp, whose streams stand one behind the other in one vector; gains are stored less 1."""

    scheme = "gated_streams(rank=3, entry=embedding)"
    parts: ClassVar = {
        "reader.gains": "hc_norm.weight", "reader.down": "input_mix_weight_down.weight",
        "reader.up": "input_mix_weight_up.weight", "reader.share": "block_inject_weight.weight",
    }  # fmt: skip
    weights: ClassVar = {
        "attn": {a: f"attn_hyper_connection.{b}" for a, b in parts.items()},
        "mlp": {a: f"mlp_hyper_connection.{b}" for a, b in parts.items()},
        "exit": {a: f"mixer.{b}" for a, b in parts.items()},
    }
    arranged: ClassVar = {"reader.gains": lambda gains: gains.view(N, DIM)}
    offsets: ClassVar = {"reader.gains": 1.0}

    def __init__(self) -> None:
        super().__init__("qwen4_exp", "Qwen4ExpText")
        self.mixer = self.connection(use_combine=False)

    def connection(self, **rest: bool) -> nn.Module:
        config = SimpleNamespace(hc_count=N, hidden_size=DIM, hc_lowrank=3, rms_norm_eps=EPS)
        return self.their("GatedResidual", config, **rest)

    def layer(self, n: int) -> nn.Module:
        layer = super().layer(n)
        layer.layer_type, layer.ple = "full_attention", None
        layer.attn_hyper_connection, layer.mlp_hyper_connection = self.connection(), self.connection()
        return layer

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 1, N)
        for layer in self.layers:
            x = layer(x, None)
        return self.mixer(x)


class Ours(nn.Module):
    def __init__(self, family: Family) -> None:
        super().__init__()
        spec, scheme = NormSpec("rms", DIM, eps=EPS), family.scheme
        self.entry = StreamEnd(scheme, Site(0, "entry", DEPTH), spec)
        self.exit = StreamEnd(scheme, Site(DEPTH - 1, "exit", DEPTH), spec)
        self.sites = nn.ModuleList(
            Residual(branch.toy, scheme, Site(n, kind, DEPTH), DIM, eps=EPS)
            for n, layer in enumerate(family.layers)
            for kind, branch in (("attn", layer.self_attn), ("mlp", layer.mlp))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for site in self.sites:
            x = site(x)
        return self.exit(x)


Pairs = list[tuple[Tensor, Tensor, Callable[[Tensor], Tensor]]]


def matched(family: Callable[[], Family]) -> tuple[Family, Ours, Pairs]:
    """Their model and ours with the same weights; our parameters, theirs, and how theirs become ours."""
    theirs = family().double()
    ours = Ours(theirs).double()
    places = [(site.own, theirs.layers[n // 2], site.kind) for n, site in enumerate(ours.sites)]
    pairs: Pairs = []
    for own, module, kind in (*places, (ours.exit.own, theirs, "exit")):
        for name, mine in own.named_parameters():
            their, arrange = module.get_parameter(theirs.weights[kind][name]), theirs.arranged.get(name, lambda p: p)
            with torch.no_grad():
                their.copy_(0.5 * wave(*their.shape, phase=0.1 * len(pairs)) + (0.7 if their.dim() == 1 else 0))
                mine.copy_(arrange(their) + theirs.offsets.get(name, 0.0))
            pairs.append((mine, their, arrange))
    return theirs, ours, pairs


@each("family", [Inkling, InklingFull, Hyper, Mean, Identity, Gated])
def test_the_model_of_transformers(family: Callable[[], Family], agree: Callable[..., None], stay_wide: None) -> None:
    theirs, ours, pairs = matched(family)
    toys = [p for site in ours.sites for p in site.branch.parameters()]
    results = []
    for model in (theirs, ours):
        for toy in toys:
            toy.grad = None
        x = wave(1, TOKENS, DIM, phase=3.0).requires_grad_()
        out = model(x)
        (out * wave(*out.shape, phase=5.0)).sum().backward()
        results.append((out, x.grad, [toy.grad for toy in toys]))
    (out, slope, slopes), (mine, own_slope, own_slopes) = results
    agree(mine, out, "output")
    agree(own_slope, slope, "gradient of the stream")
    for toy, (a, b) in enumerate(zip(own_slopes, slopes, strict=True)):
        agree(a, b, f"gradient of toy {toy}")
    for mine, their, arrange in pairs:
        agree(mine.grad, arrange(their.grad), "gradient of the scheme")
