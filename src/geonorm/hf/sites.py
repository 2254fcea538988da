"""Residual sites of ours in the place of a stock model's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from ..errors import ConfigError
from ..measure.anatomy import Stack, blocks_of, join_path
from ..measure.observe import stacks_of
from ..residual import StreamEnd
from ..schemes import Scheme, Site
from .block import Exit, block_class, call_of, carry, norm_in, norm_spec, site_of


def stock_norms(model: Any) -> Iterator[str]:
    """The path of every norm inside and behind the blocks."""
    for stack, base in stacks_of(model):
        for layer in range(len(blocks_of(model, stack, base))):
            for sublayer in stack.sublayers:
                for path in sublayer.norms:
                    yield join_path(base, stack.blocks, str(layer), path)
        if stack.exit is not None:
            yield join_path(base, stack.exit)


def replace_sites(model: Any, scheme: Scheme) -> set[int]:
    """Gives every block of the model residual sites under the scheme; returns the ids of parameters that took over the
    gains of a stock norm."""
    carried: set[int] = set()
    for stack, base in stacks_of(model):
        blocks = blocks_of(model, stack, base)
        depth, dim = len(blocks), int(model.config.hidden_size)
        count = max(2, len(stack.sublayers))
        like = next(p for block in blocks for p in block.parameters() if p.is_floating_point())
        last = None if stack.exit is None else model.get_submodule(join_path(base, stack.exit))
        inside = [blocks[0].get_submodule(path) for place in stack.sublayers for path in place.norms]
        spec = norm_spec(stack, dim, inside if last is None else [last])
        stock: Any = type(blocks[0])
        made = block_class(stock)
        for layer, block in enumerate(blocks):
            sites = nn.ModuleDict()
            for sublayer in stack.sublayers:
                site = Site(layer, sublayer.kind, depth, count)
                residual: Any = site_of(block, sublayer, stack, scheme, site, dim)
                heirs = [norm_in(residual.own, role) for role in sublayer.norms.values()]
                heirs += [chain.gains for chain in residual.branch.chains]
                carried |= {id(p) for heir in heirs if heir is not None for p in heir.parameters()}
                sites[sublayer.kind] = residual
            check_complete(block, sites, stack)
            call = call_of(block, stack)
            block._modules, block.call, block.__class__ = {"residuals": sites, "entry": None, "exit": None}, call, made
        count = len(stack.sublayers)  # 1 where sites are parallel
        entry = StreamEnd(scheme, Site(0, "entry", depth, count), spec).to(device=like.device, dtype=like.dtype)
        exit = Exit(scheme, Site(depth - 1, "exit", depth, count), spec, like.dtype).to(like.device)
        exit.own.to(like.dtype)
        blocks[0].entry = entry
        target = norm_in(exit.own, "norm")
        if last is None:
            blocks[-1].exit = exit
            continue
        if target is not None:
            carry(last, target, stack.gain_offset)
            carried |= {id(p) for p in target.parameters()}
        model.set_submodule(join_path(base, stack.exit or ""), exit)
    return carried


def check_complete(block: nn.Module, sites: nn.ModuleDict, stack: Stack) -> None:
    """Nothing of the block may be left behind: every parameter is in a branch or in a norm of the table."""
    norms = [p for sub in stack.sublayers for path in sub.norms for p in block.get_submodule(path).parameters()]
    known = {id(p) for p in (*sites.parameters(), *norms)}
    lost = [name for name, p in block.named_parameters() if id(p) not in known]
    if lost:
        raise ConfigError(f"blocks of this model have parameters that apply does not know: {', '.join(lost[:3])}")
