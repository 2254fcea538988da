"""Combinators: schemes made of schemes, chosen by site when a Residual is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import floor
from typing import Literal

from .base import Placement, Scheme, Site, require
from .flat import Post, Pre
from .parse import register


@register("mix")
@dataclass(frozen=True)
class Mix(Scheme):
    """The first share of the blocks under `a`, the rest under `b`; post, pre and a quarter are Mix-LN."""

    equation = "a in the first floor(share L) blocks, b after them"
    source = "Li et al. 2024 (Mix-LN), arXiv:2412.13795"

    a: Scheme = field(default_factory=Post)
    b: Scheme = field(default_factory=Pre)
    share: float = 0.25
    entry: Literal["part", "sphere", "embedding"] = field(default="part", kw_only=True)
    """part: as the first block's scheme enters; else overrides it."""

    def check(self) -> None:
        super().check()
        require(0 <= self.share <= 1, f"share must lie in [0, 1], got {self.share}")
        require(
            self.a.streams == self.b.streams,
            f"cannot mix {self.a} of {self.a.streams} with {self.b} of {self.b.streams} streams per token",
        )

    @property
    def streams(self) -> int:  # type: ignore[override]
        return self.a.streams

    @property
    def planar(self) -> bool:  # type: ignore[override]
        return self.a.planar and self.b.planar

    def resolve(self, site: Site) -> Scheme:
        switch = floor(self.share * site.depth + 1e-9)  # 0.58 of 50 blocks is 29, not the 28.999... of the product
        part = self.a if site.layer < switch else self.b
        part = part.resolve(site)
        if site.kind == "entry" and self.entry != "part" and isinstance(part, Placement):
            return replace(part, entry=self.entry)
        return part

    def recipe(self) -> dict[str, float]:
        return {**self.b.recipe(), **self.a.recipe()}
