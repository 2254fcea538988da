"""What an editor and mypy say of a user's file. mypy reads it with src (make check), where an ignore that is not needed
is an error, as it would be if a public name were Any."""

from typing import assert_type

from torch import Tensor, nn

import geonorm
from geonorm import Decoder, DecoderConfig, Residual, Scheme, Site, geodesic_update, parse

site = Site(2, "attn", 12)
block = Residual(nn.Linear(8, 8), "geonorm", site, 8)
decoder = Decoder(DecoderConfig(layers=2))


def check(x: Tensor, u: Tensor) -> None:
    assert_type(site, Site)
    assert_type(block, Residual)
    assert_type(parse("pre"), Scheme)
    assert_type(geodesic_update(x, u), Tensor)
    assert_type(decoder, Decoder)
    assert_type(geonorm.names(), list[str])
    Site(layr=2)  # type: ignore[call-arg]
    DecoderConfig(layer=2)  # type: ignore[call-arg]
    geonorm.pars("pre")  # type: ignore[attr-defined]
