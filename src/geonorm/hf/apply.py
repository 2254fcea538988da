"""A scheme for a model that exists: `report = geonorm.hf.apply(model, "geonorm")`.

Every residual site of a stock transformers model is replaced in place: attention, MLP and their dropout stay, what they
read and how their output is written is the scheme's, and the norms that the new scheme does not have are gone. The
model is then of another type: it saves and loads as that (see applied.py). `report.undo()` takes everything back.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel
from transformers.utils import output_capturing

from ..anatomy import FAMILIES, Stack, join, root
from ..errors import ConfigError, unknown
from ..nn.decoder import End
from ..residual import Residual
from ..schemes import Scheme, Site, parse
from .applied import TYPE, Undo, config_class, is_applied, model_class
from .block import AppliedBlock, Exit, call_of, carry, norm_in, norm_spec, site_of

SLOTS = {"attn": ("q", "k", "v", "q_rope", "k_rope"), "mlp": ("up", "gate"), "exit": ("logits",)}
RECORD = "_geonorm_undo"


@dataclass
class Report:
    """What `apply` changed. `print(report)` says it; `report.undo()` takes it back."""

    model: Any = field(repr=False)
    scheme: str
    family: str
    sites: int
    """Residual sites that were replaced."""
    removed: list[str]
    """Stock norms that are gone, by path."""
    added: dict[str, int]
    """Parameters that the scheme brought, by path, with their number of elements; carried ones among them."""
    carried: list[str]
    """Those of them that took over the gains of a stock norm."""
    notes: list[str]
    """What is as it was although the scheme's own recipe would have it otherwise."""
    near: Any = None
    """How near the first forward pass is (init="match")."""

    def undo(self) -> None:
        restore(self.model)

    def __str__(self) -> str:
        new = sum(self.added.values())
        lines = [
            f"{self.scheme} on {type(self.model).__name__} ({self.family}): {self.sites} residual sites replaced",
            f"  removed  {listed(self.removed)}",
            f"  added    {listed(list(self.added))}: {new:,} parameters, {len(self.carried)} tensors carried over",
            *(f"  note     {note}" for note in self.notes),
        ]
        if self.near is not None:
            lines.append(f"  near     {self.near}")
        return "\n".join(lines)


def listed(paths: list[str]) -> str:
    """`layers.*.norm (24)` for paths that differ in numbers only."""
    patterns: dict[str, int] = {}
    for path in paths:
        key = ".".join("*" if part.isdigit() else part for part in path.split("."))
        patterns[key] = patterns.get(key, 0) + 1
    return ", ".join(f"{key} ({count})" for key, count in patterns.items()) or "nothing"


def apply(model: Any, scheme: str | Scheme, init: Literal["keep", "match"] = "keep", probe: Any = None) -> Report:
    """Puts a stock model (see `geonorm.anatomy.FAMILIES`) under a scheme, in place, and says what it changed.

    init: keep leaves every weight as it is; norms of the scheme that stand where a stock norm stood take over its
    gains, others start as the scheme says. match also puts one gain on what each branch proposes, and the stock norm's
    gains on what it reads where the scheme has no norm there, and fits them on `probe`, so that the first forward pass
    is as near as it can be (see match.py). probe: ids (batch, tokens), or the keyword arguments of the model's forward
    pass; random ones when not given.

    The residual stream is fp32 (fp64 for fp64) between the first block and the last, whatever the model's dtype; new
    parameters have the model's. Raises ConfigError, one line, for a model that cannot be changed so.
    """
    scheme = parse(scheme)
    if init not in ("keep", "match"):
        raise ConfigError(unknown("init", init, ("keep", "match")))
    check_model(model)
    check_scheme(model, scheme)
    if probe is not None and init == "keep":
        raise ConfigError('a probe is what init="match" fits on: leave it out, or say init="match"')
    family = model.config.model_type
    if init == "match":
        from .match import matched

        report, near = matched(model, lambda: change(model, scheme, family, True), probe)
        report.near = near
        return report
    return change(model, scheme, family, False)


def restore(model: Any) -> None:
    """Gives a model back its residual scheme, its norms and its type. Weights that were trained meanwhile stay."""
    record = vars(model).get(RECORD)
    if record is None:
        what = "was loaded from a folder, which holds no stock norms" if is_applied(model) else "has its own scheme"
        raise ConfigError(f"nothing to restore: this {type(model).__name__} {what}")
    for step in reversed(record):
        step()
    del vars(model)[RECORD]


def change(model: Any, scheme: Scheme, family: str, matched: bool) -> Report:
    before = {name: p.shape for name, p in model.named_parameters()}
    stock = {id(p) for p in model.parameters()}
    removed = [join(base, path) for _, base, path in stock_norms(model)]
    undo: list[Undo] = []
    try:
        dress(model, str(scheme), family, matched, undo)
        carried = replace_sites(model, scheme, family, matched, undo)
    except BaseException:
        for step in reversed(undo):
            step()
        raise
    vars(model)[RECORD] = undo
    added = {name: p.numel() for name, p in model.named_parameters() if id(p) not in stock}
    assert sum(p.numel() for p in model.parameters()) == sum(added.values()) + sum(
        shape.numel() for name, shape in before.items() if not any(name.startswith(f"{path}.") for path in removed)
    )
    sites = sum(isinstance(module, Residual) for module in model.modules())
    kept = [path for path, p in model.named_parameters() if id(p) in carried]
    return Report(model, str(scheme), family, sites, removed, added, kept, notes(scheme))


def install(model: Any, scheme: str, matched: bool) -> None:
    """What loading does: the same change to a model that was just built of its stock parts."""
    if any(isinstance(module, Residual) for module in model.modules()):
        return
    undo: list[Undo] = []
    dress(model, scheme, model.config.stock_type, matched, undo)
    replace_sites(model, parse(scheme), model.config.stock_type, matched, undo)


def stacks(model: Any, config: Any, family: str) -> Iterator[tuple[Stack, str]]:
    """The stacks that a model has, with the path of the base model."""
    for stack in FAMILIES[family](config):
        base = root(model, stack)
        if base is not None:
            yield stack, base


def stock_norms(model: Any) -> Iterator[tuple[Stack, str, str]]:
    """Every norm inside and behind the blocks: stack, path of the base or the block, path below it."""
    for stack, base in stacks(model, model.config, model.config.model_type):
        for layer in range(len(model.get_submodule(join(base, stack.blocks)))):
            for sublayer in stack.sublayers:
                for path in sublayer.norms:
                    yield stack, join(base, stack.blocks, str(layer)), path
        if stack.exit is not None:
            yield stack, base, stack.exit


def replace_sites(model: Any, scheme: Scheme, family: str, matched: bool, undo: list[Undo]) -> set[int]:
    """Gives every block of the model residual sites under the scheme; returns the ids of parameters that took over the
    gains of a stock norm."""
    carried: set[int] = set()
    for stack, base in stacks(model, model.config, family):
        blocks = model.get_submodule(join(base, stack.blocks))
        depth, dim = len(blocks), int(model.config.hidden_size)
        made: Any = None
        like = next(p for p in blocks.parameters() if p.is_floating_point())
        last = None if stack.exit is None else model.get_submodule(join(base, stack.exit))
        inside = [blocks[0].get_submodule(path) for place in stack.sublayers for path in place.norms]
        spec = norm_spec(stack, dim, inside if last is None else [last])
        for layer, block in enumerate(blocks):
            made = made or type(type(block).__name__, (AppliedBlock, type(block)), {"__module__": __name__})
            sites = nn.ModuleDict()
            for sublayer in stack.sublayers:
                site = Site(layer, sublayer.kind, depth)
                sites[sublayer.kind] = site_of(block, sublayer, stack, scheme, site, dim, matched)
                carried |= taken_over(sites[sublayer.kind], sublayer.norms.values())
            check_complete(block, sites, stack)
            rebuild(block, made, sites, call_of(block, stack.sublayers, family), undo)
        entry = End(scheme, Site(0, "entry", depth), spec).to(device=like.device, dtype=like.dtype)
        exit = Exit(scheme, Site(depth - 1, "exit", depth), spec, like.dtype).to(like.device)
        exit.own.to(like.dtype)
        blocks[0].entry = entry
        target = norm_in(exit.own, "norm")
        if last is None:
            blocks[-1].exit = exit
        else:
            if target is not None:
                carry(last, target, stack.gain_offset)
                carried |= {id(p) for p in target.parameters()}
            swap(model, join(base, stack.exit or ""), exit, undo)
    return carried


def taken_over(residual: Any, roles: Any) -> set[int]:
    found = {id(p) for role in set(roles) for p in (norm_in(residual.own, role) or nn.Module()).parameters()}
    return found | {id(p) for chain in residual.branch.chains if chain.gains for p in chain.gains.parameters()}


def rebuild(block: nn.Module, made: type, sites: nn.ModuleDict, call: Any, undo: list[Undo]) -> None:
    """The block's children become its residual sites; the old ones wait in the record of how to undo it."""
    children, kind = block._modules, type(block)

    def back() -> None:
        device = next(sites.parameters()).device
        dtype = next(p for p in sites.parameters() if p.is_floating_point()).dtype
        block._modules = children
        block.__class__ = kind
        del block.call
        block.to(device=device, dtype=dtype).train(block.training)

    block._modules = {"residuals": sites, "entry": None, "exit": None}
    block.call = call
    block.__class__ = made
    undo.append(back)


def swap(model: nn.Module, path: str, module: nn.Module, undo: list[Undo]) -> None:
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    old = getattr(owner, name)

    def back() -> None:
        like = next((p for p in owner.parameters() if p.is_floating_point()), None)
        setattr(
            owner, name, old if like is None else old.to(device=like.device, dtype=like.dtype).train(owner.training)
        )

    setattr(owner, name, module)
    undo.append(back)


def dress(model: Any, scheme: str, family: str, matched: bool, undo: list[Undo]) -> None:
    """Makes the model, and every model inside it, of the type that says what it is; configurations are copied first,
    because other models may share them."""
    copies: dict[int, Any] = {}
    olds: list[tuple[Any, Any]] = []
    stock: Any = type(model.config)
    made = stock if is_applied(model) else config_class(stock)
    says = {"scheme": scheme, "matched": matched, "stock_type": family, "model_type": TYPE}
    for module in model.modules():
        old = getattr(module, "config", None)
        if old is not None and type(old) is stock and stock is not made:
            if id(old) not in copies:
                copies[id(old)] = new = copy.deepcopy(old)
                new.__class__ = made
                for key, value in says.items():
                    setattr(new, key, value)
            olds.append((module, old))
    for module, old in olds:
        module.config = copies[id(old)]
    plans: dict[str, Any] = {"_tp_plan": {}, "_pp_plan": {}, "_weight_conversions": []}  # they name the stock paths
    for module in [module for module in model.modules() if isinstance(module, PreTrainedModel)]:
        if not is_applied(module):
            kind: Any = type(module)
            module.__class__ = model_class(kind, made)
            undo.append(partial(setattr, module, "__class__", kind))
        # transformers looks this up by the class's name; there is no public way to enter a class of one's own
        output_capturing._CAN_RECORD_REGISTRY[module] = module._can_record_outputs
        for name, value in plans.items():
            keep(module, name, value, undo)

    def back() -> None:
        for module, old in olds:
            module.config = old

    undo.append(back)


def keep(module: Any, name: str, value: Any, undo: list[Undo]) -> None:
    """Sets an attribute of the instance."""
    had = name in vars(module)
    old = vars(module).get(name)
    vars(module)[name] = value
    undo.append(lambda: vars(module).update({name: old}) if had else vars(module).pop(name))


def check_model(model: Any) -> None:
    name = type(model).__name__
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError("this model has PEFT adapters: apply the scheme first, then add them")
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"apply changes transformers models, not {name}; geonorm.Residual is for models of your own")
    if is_applied(model):
        raise ConfigError(f"{model.config.scheme} is already applied to this {name}: undo it first (hf.restore)")
    family = str(model.config.model_type)
    if family.startswith("geonorm"):
        raise ConfigError(f"{name} is geonorm's own model: its scheme is a field of its configuration")
    if family not in FAMILIES:
        raise ConfigError(unknown("model family", family, FAMILIES))
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise ConfigError(f"this {name} is quantised: apply the scheme to the full-precision model")
    found = list(stacks(model, model.config, family))
    if not found or any("language_model" in stack.blocks for stack, _ in found):
        raise ConfigError(f"{name} has no blocks that apply knows; give it the text model alone")
    for stack, base in found:
        for block in model.get_submodule(join(base, stack.blocks)).children():
            if "forward" in vars(block) or hasattr(block, "_hf_hook"):
                raise ConfigError(f"the blocks of this {name} are wrapped (by accelerate or a patch): apply first")


def check_scheme(model: Any, scheme: Scheme) -> None:
    for stack, base in stacks(model, model.config, model.config.model_type):
        depth = len(model.get_submodule(join(base, stack.blocks)))
        for kind, names in SLOTS.items():
            for layer in range(depth):
                site = Site(layer, kind, depth)
                part = scheme.resolve(site)
                wanted = [name for name in names if part.slot(name, (1, 8), 8, site) is not None]
                if wanted or type(part).constrain is not Scheme.constrain:
                    inside = (
                        f"modules inside a branch or head ({', '.join(wanted)})" if wanted else "constraints on weights"
                    )
                    raise ConfigError(
                        f"{scheme} needs {inside}, which a stock model does not have; train geonorm's own"
                    )


def check_complete(block: nn.Module, sites: nn.ModuleDict, stack: Stack) -> None:
    """Nothing of the block may be left behind: every parameter is in a branch or in a norm of the table."""
    norms = [p for sub in stack.sublayers for path in sub.norms for p in block.get_submodule(path).parameters()]
    known = {id(p) for p in (*sites.parameters(), *norms)}
    lost = [name for name, p in block.named_parameters() if id(p) not in known]
    if lost:
        raise ConfigError(f"blocks of this model have parameters that apply does not know: {', '.join(lost[:3])}")


def notes(scheme: Scheme) -> list[str]:
    found = []
    site = Site(1, "mlp", 12)
    part = scheme.resolve(site)
    ratios = {role: part.init_std(role, 64, 64, site, 1.0) for role in ("o", "down")}
    if any(ratio != 1.0 for ratio in ratios.values()):
        found.append(f"{scheme} draws its matrices with other standard deviations; yours were kept")
    if scheme.recipe():
        found.append(f"its paper trains with {scheme.recipe()}")
    return found
