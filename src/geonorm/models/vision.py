"""A vision transformer whose residual scheme is a string: patches, blocks, the class of an image."""

import torch
from torch import Tensor, nn

from ..norms import NormSpec, upcast
from ..schemes import slot_at
from .attention import Rope, rope
from .config import VisionConfig
from .decoder import Transformer
from .init import linear, undrawn_table


class VisionTransformer(Transformer):
    """(batch, channels, image_size, image_size) of normalised pixels to logits (batch, classes) (arXiv:2010.11929).

    Every patch is one token: a linear map of its pixels, channel by channel and row by row, plus a learned vector of
    its place, or queries and keys turned by its row and its column. The head reads a token of its own, or the mean
    over all patches, after the exit. The stream is fp32 or better.

    >>> config = geonorm.models.VisionConfig("geonorm", layers=1, image_size=8, patch=4, classes=10)
    >>> geonorm.models.VisionTransformer(config)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """

    config: VisionConfig

    def make_front(self, norm: NormSpec) -> None:
        c = self.config
        self.values = nn.ModuleDict()
        self.patch = linear("patch", c.channels * c.patch**2, c.width, c.bias)
        self.class_token = undrawn_table("class_token", 1, c.width) if c.pool == "token" else None
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None

    def make_head(self) -> None:
        c = self.config
        self.head = linear("head", c.width, c.classes, c.bias)
        self.logits_slot = slot_at(self.exit.scheme, "logits", (c.classes,), c.width, self.exit.site)

    def ends(self) -> list[nn.Module]:
        return [self.patch, self.head]

    def forward(self, images: Tensor) -> Tensor:
        x, turns = self.begin(images)
        return self.predict(self.run_blocks(self.entry(x), turns))

    def begin(self, images: Tensor) -> tuple[Tensor, Rope | None]:
        """What enters the stream, (batch, tokens, width) in fp32 or better, and the turns of its places: patches row by
        row after the vector of the class, where there is one."""
        turns = turns_of_places(self.config, images.device) if self.config.positions == "rope" else None
        # (batch, patches, pixels of one): row by row, in each patch one channel after the other
        cut = nn.functional.pixel_unshuffle(images, self.config.patch).flatten(2).mT.to(self.patch.weight.dtype)
        # row by row, so that what the layer returns is no view: FSDP warns of one at every start
        x = upcast(self.patch(cut.flatten(0, 1)).unflatten(0, cut.shape[:2]))
        if self.class_token is not None:
            x = torch.cat((self.class_token.weight.to(x.dtype).expand(len(x), 1, -1), x), dim=1)
        return x if self.position is None else x + self.position.weight, turns

    def predict(self, x: Tensor) -> Tensor:
        """Logits (batch, classes) of the end of the stream."""
        y = self.exit(x)
        y = y[:, 0] if self.config.pool == "token" else y.mean(1)
        logits: Tensor = self.head(y.to(self.head.weight.dtype))
        return logits if self.logits_slot is None else self.logits_slot(logits)


def turns_of_places(config: VisionConfig, device: torch.device) -> Rope:
    """(cos, sin), each (tokens, rotary_dim / 2) in fp32: half of the pairs turn with the row of a patch, half with its
    column, both from 1; the token in front stands at 0, 0."""
    places = torch.arange(1, config.side + 1, device=device)
    rows, columns = places.repeat_interleave(config.side), places.repeat(config.side)
    if config.pool == "token":
        rows, columns = (torch.cat((each.new_zeros(1), each)) for each in (rows, columns))
    turns = [rope(each, config.rotary_dim // 2, config.rope_theta) for each in (rows, columns)]
    cos, sin = (torch.cat(parts, dim=-1) for parts in zip(*turns, strict=True))
    return cos, sin
