"""A language model whose residual scheme is a string: embedding, blocks, head; and what all models here share.

    front -> entry -> L x (attention residual, MLP residual) -> exit -> head

or one residual per block around attention and MLP side by side. No layer knows which scheme it runs under. Rotary or
learned positions, grouped queries, SwiGLU or GELU, SDPA. With `causal` off every token sees all others: the same model
as an encoder, for masked language modelling.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ConfigError
from ..norms import NormSpec, TaperNorm, upcast
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, Site, parse, slot_at
from .attention import (
    LayerCache,
    Rope,
    SelfAttention,
    document_masks,
    rotary_of,
    token_tables,
    values_for_block,
)
from .config import DecoderConfig, TransformerConfig
from .init import Weight, constrain, draw_all, linear, undrawn_table, weights_of
from .mlp import MLP


def model_norm(config: TransformerConfig) -> NormSpec:
    """What N means outside the blocks: there `taper` is RMSNorm, as the last norm keeps logits from growing."""
    return NormSpec(
        "rms" if config.norm == "taper" else config.norm, config.width, config.gains, config.eps, config.norm_bias
    )


def make_residual(branch: nn.Module, scheme: Scheme, site: Site, config: TransformerConfig) -> Residual:
    """The branch under the scheme, with the norms of this model."""
    residual = Residual(branch, scheme, site, config.width, config.norm, config.gains, config.eps, config.norm_bias)
    for module in residual.own.modules():
        if isinstance(module, TaperNorm):
            module.start, module.end = config.taper_from, config.taper_to
    return residual


class Block(nn.Module):
    """One layer: attention, then an MLP, each under the residual scheme."""

    attention = SelfAttention
    """The class of the attention; another way to attend is a subclass."""

    def __init__(self, config: TransformerConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        attn, mlp = (Site(layer, kind, config.layers) for kind in ("attn", "mlp"))
        self.attn = make_residual(self.attention(config, scheme.resolve(attn), attn), scheme, attn, config)
        self.mlp = make_residual(MLP(config, scheme.resolve(mlp), mlp), scheme, mlp, config)

    def forward(self, x: Tensor, **context: Any) -> Any:
        """x after attention and MLP: the stream, or (stream, values) where attention also returns its values.

        context: what attention takes besides x. The attention residual is told what comes next, so that one kernel can
        write x and read it for the MLP; the numbers are those of one after the other.
        """
        x, mlp_input, *values = self.attn(x, then=self.mlp, **context)
        x = self.mlp(x, reading=mlp_input)
        return (x, *values) if values else x


class ParallelBranch(nn.Module):
    """Attention and MLP on the same y, their outputs added: (batch, tokens, width) to the same, one update.

    This is GPT-J's layer under `pre`. GPT-NeoX normalises y once for each with gains and biases of their own: the same
    function, with those of one folded into the matrices after it, W (g y + b) = (W g) y + W b.
    """

    def __init__(
        self, config: TransformerConfig, scheme: Scheme, site: Site, attention: type[SelfAttention] = SelfAttention
    ) -> None:
        super().__init__()
        self.attn = attention(config, scheme, site)
        self.mlp = MLP(config, scheme, site)

    def forward(self, y: Tensor, **context: Any) -> Any:
        update = self.attn(y, **context)
        if isinstance(update, tuple):
            return update[0] + self.mlp(y), *update[1:]
        return update + self.mlp(y)


class ParallelBlock(nn.Module):
    """One layer: one residual around attention and MLP, its site kind `parallel`."""

    attention = SelfAttention

    def __init__(self, config: TransformerConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        site = Site(layer, "parallel", config.layers)
        branch = ParallelBranch(config, scheme.resolve(site), site, self.attention)
        self.both = make_residual(branch, scheme, site, config)

    def forward(self, x: Tensor, **context: Any) -> Any:
        """As `Block`."""
        return self.both(x, **context)


IGNORED = -100
"""The target where there is nothing to predict."""
MOST_LOGITS = 2**27
"""Logits of a loss that exist at a time, tokens times vocabulary: 512 MiB in fp32."""
BLOCKS = {"sequential": Block, "parallel": ParallelBlock}


class Transformer(nn.Module):
    """What all models share: entry, blocks, exit. A model says what stands in front of them (`make_front`) and after
    (`make_head`), and its forward pass leads through `run_blocks`.

    Weights are drawn at construction from torch's global generator, in one order for all schemes, so that one seed
    gives every scheme the same draws; biases start at 0.
    """

    config: TransformerConfig
    head: nn.Linear
    values: nn.ModuleDict

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = c = config
        self.scheme = parse(c.scheme)
        norm = model_norm(c)
        self.make_front(norm)
        self.entry = StreamEnd(self.scheme, Site(0, "entry", c.layers, c.sublayers), norm)
        self.blocks = nn.ModuleList(BLOCKS[c.block](c, self.scheme, layer) for layer in range(c.layers))
        self.exit = StreamEnd(self.scheme, Site(c.layers - 1, "exit", c.layers, c.sublayers), norm)
        self.make_head()
        self.reset_parameters()

    def make_front(self, norm: NormSpec) -> None:
        """Make what turns inputs into vectors, and `values`, tables of token vectors for attention, if any."""

    def make_head(self) -> None:
        """Make what turns the end of the stream into logits: `head`, and what stands around it."""

    def share_weights(self) -> None:
        """Make one tensor of weights that the model has in two places."""

    def ends(self) -> list[nn.Module]:
        """What holds the matrices outside the blocks, in front of them and after; none where it is one matrix."""
        raise NotImplementedError(f"{type(self).__name__} must say what holds its outer matrices")

    def run_blocks(
        self,
        x: Tensor,
        positions: Rope | None,
        ids: Tensor | None = None,
        cache: list[LayerCache] | None = None,
        masks: dict[int | None, Any] | None = None,
    ) -> Tensor:
        """The stream after all blocks. ids: tokens, for models with tables of token vectors. masks: of documents, by
        window."""
        first_values: Tensor | None = None
        for layer, block in enumerate(self.blocks):
            values = values_for_block(self.values, ids, layer, first_values)
            mask = masks[self.config.window_of(layer)] if masks else None
            x = block(x, positions=positions, cache=cache[layer] if cache else None, values=values, mask=mask)
            if isinstance(x, tuple):
                x, first_values = x
        return x

    def loss(self, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Cross entropy in nats of targets, one for each row of logits: of tokens (batch, tokens), of images (batch,);
        computed in fp32; a target of IGNORED is none."""
        return self.cross_entropy(self(inputs).flatten(0, -2), targets.flatten(), reduction)

    @staticmethod
    def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Apart, so that it can be compiled: fused, the fp32 copies of the logits never reach memory."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return F.cross_entropy(logits, targets, reduction=reduction, ignore_index=IGNORED)

    def weights(self) -> list[Weight]:
        """Every weight with a role: (role, weight, the scheme it stands under, its site)."""
        return weights_of(self)

    def reset_parameters(self) -> None:
        """Draw all weights anew and restore every norm, scalar and buffer."""
        draw_all(self, self.config)

    def constrain(self) -> None:
        """`geonorm.constrain(self)`: after every optimizer step."""
        constrain(self)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def matmul_parameter_count(self) -> int:
        """Parameters of matrices, those at the ends included: equal for all schemes at one size."""
        return sum(weight.tensor.numel() for weight in self.weights())


class SoftCap(nn.Module):
    """Logits between -cap and cap, cap tanh(y / cap), in the precision of the maths; `before` is what a scheme does to
    them first."""

    def __init__(self, cap: float, before: nn.Module | None) -> None:
        super().__init__()
        self.cap, self.before = cap, before

    def forward(self, y: Tensor) -> Tensor:
        y = upcast(y if self.before is None else self.before(y))
        return self.cap * torch.tanh(y / self.cap)


def slot_on_logits(end: StreamEnd, vocab_size: int, width: int, soft_cap: float | None) -> nn.Module | None:
    """What is done to logits after the head, by the scheme at the exit and by the model."""
    slot = slot_at(end.scheme, "logits", (vocab_size,), width, end.site)
    return slot if soft_cap is None else SoftCap(soft_cap, slot)


class Transform(nn.Module):
    """What stands before the head of BERT: (..., width) to N(gelu(W y + b))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.dense = linear("transform", config.width, config.width, bias=True)
        self.formula = "tanh" if config.mlp == "gelu_tanh" else "none"
        self.norm = model_norm(config)()

    def forward(self, y: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(y), approximate=self.formula))


class LogitsHead(nn.Linear):
    """The matrix to logits. With targets it gives a sum of losses over pieces of the tokens, whose logits are made one
    piece after the other, and again for the backward pass. (torch 2.13 has a linear_cross_entropy, which knows neither
    a cap on logits nor what schemes do to them.)"""

    def forward(self, y: Tensor, targets: Tensor | None = None, sum_losses: Any = None) -> Tensor:
        """y: (..., width), with targets (tokens, width) and (tokens,). sum_losses: of logits and targets."""
        if targets is None:
            return super().forward(y)

        def losses_of_piece(y: Tensor, targets: Tensor) -> Tensor:
            return sum_losses(F.linear(y, self.weight, self.bias), targets)

        # a power of two, so that pieces are alike
        count = 1 << ((targets.numel() * self.out_features - 1) // MOST_LOGITS).bit_length()
        pieces = zip(y.chunk(count), targets.chunk(count), strict=True)
        losses = [checkpoint(losses_of_piece, *p, use_reentrant=False, preserve_rng_state=False) for p in pieces]
        return torch.stack(losses).sum()


class Decoder(Transformer):
    """(batch, tokens) of ids to logits (batch, tokens, vocab_size).

    >>> model = geonorm.Decoder(geonorm.models.preset("nano", layers=2, vocab_size=256))
    >>> ids = torch.randint(256, (1, 8))
    >>> model(ids).shape
    torch.Size([1, 8, 256])
    >>> model.loss(ids[:, :-1], ids[:, 1:]).shape  # cross entropy in nats, a mean
    torch.Size([])
    """

    config: DecoderConfig

    def make_front(self, norm: NormSpec) -> None:
        c = self.config
        self.rotary = rotary_of(c)
        self.embed = undrawn_table("embed", c.vocab_size, c.width)
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None
        self.values = token_tables(c)
        self.embed_norm = norm() if c.embed_norm else None

    def make_head(self) -> None:
        c = self.config
        self.transform = Transform(c) if c.transform else None
        self.head = linear("head", c.width, c.vocab_size, c.transform, LogitsHead)
        self.share_weights()
        self.logits_slot = slot_on_logits(self.exit, c.vocab_size, c.width, c.soft_cap)

    def share_weights(self) -> None:
        if self.config.tied:
            self.head.weight = self.embed.weight

    def ends(self) -> list[nn.Module]:
        return [] if self.config.tied else [self.embed, self.head]

    def forward(self, ids: Tensor, cache: list[LayerCache] | None = None, targets: Tensor | None = None) -> Tensor:
        """Logits; with targets the mean loss."""
        x, turns = self.begin(ids, cache[0].length if cache else 0)
        x = self.run_blocks(self.entry(x), turns, ids, cache, None if cache else self.masks(ids))
        return self.predict(x) if targets is None else self.predict_loss(x, targets)

    def loss(self, inputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """As in every model; a mean without all logits at once where there would be more than MOST_LOGITS."""
        return self(inputs, targets=targets) if reduction == "mean" else super().loss(inputs, targets, reduction)

    def masks(self, ids: Tensor) -> dict[int | None, Any] | None:
        """Of documents, by window, where tokens see their own alone. (Text that is generated is one document.)"""
        c = self.config
        if c.document_end is None:
            return None
        in_blocks = ids.device.type == "cuda" and not c.attn_dropout and c.head_dim >= 16
        return document_masks(ids, c.document_end, {c.window_of(layer) for layer in range(c.layers)}, in_blocks)

    def begin(self, ids: Tensor, past: int = 0) -> tuple[Tensor, Rope | None]:
        """What enters the stream for ids (batch, tokens) after `past` others, and the turns of their positions."""
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)
        turns = None if self.rotary is None else self.rotary(positions)
        x = self.embed(ids)
        if self.position is not None:
            if (tokens := past + ids.shape[1]) > self.config.context:
                known = f"the {self.config.context} positions that this model has learned"
                raise ConfigError(f"{tokens} tokens are more than {known}; give fewer")
            if self.config.document_end is not None and not past:
                positions = positions - (positions * (ids == self.config.document_end)).cummax(1).values
            x = x + self.position(positions)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return x, turns

    def predict(self, x: Tensor) -> Tensor:
        """Logits (batch, tokens, vocab_size) of the end of the stream."""
        return self.finish_logits(self.head(self.features(x)))

    def predict_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the end of the stream in nats."""
        if targets.numel() * self.config.vocab_size <= MOST_LOGITS:
            return self.cross_entropy(self.predict(x).flatten(0, -2), targets.flatten())

        def sum_losses(logits: Tensor, targets: Tensor) -> Tensor:
            return self.cross_entropy(self.finish_logits(logits), targets, "sum")

        total: Tensor = self.head(self.features(x).flatten(0, -2), targets.flatten(), sum_losses)
        return total / (targets != IGNORED).sum()

    def features(self, x: Tensor) -> Tensor:
        """What the head reads of the end of the stream."""
        y = self.exit(x).to(self.head.weight.dtype)
        return y if self.transform is None else self.transform(y).to(y.dtype)

    def finish_logits(self, logits: Tensor) -> Tensor:
        """What is done to logits after the head."""
        return logits if self.logits_slot is None else self.logits_slot(logits)
