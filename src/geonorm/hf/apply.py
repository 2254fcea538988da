"""A scheme for a model that exists: `report = geonorm.hf.apply(model, "geonorm")`.

Every residual site of a stock transformers model is replaced in place: attention, MLP and their dropout stay, what they
read and how their output is written is the scheme's, and the norms that the new scheme does not have are gone. The
model is then of another type: it saves and loads as that (see applied.py). `report.undo()` takes everything back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import ConfigError
from ..measure.anatomy import FAMILIES, blocks_of
from ..measure.observe import stacks_of
from ..models.init import SLOTS
from ..parsing import list_paths
from ..residual import Residual
from ..schemes import Scheme, Site, parse
from .applied import AppliedFields, dress, forget_hooks, is_applied, stock_config
from .block import AppliedBlock, Exit
from .sites import replace_sites, stock_norms

RECORD = "_geonorm_undo"
KEPT = ("config", "call", "_tp_plan", "_pp_plan", "_weight_conversions")
"""Attributes of modules that take other values."""


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

    def undo(self) -> None:
        restore(self.model)

    def __str__(self) -> str:
        new = sum(self.added.values())
        lines = [
            f"{self.scheme} on {type(self.model).__name__} ({self.family}): {self.sites} residual sites replaced",
            f"  removed  {list_paths(self.removed)}",
            f"  added    {list_paths(list(self.added))}: {new:,} parameters, {len(self.carried)} tensors carried over",
            *(f"  note     {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def apply(model: Any, scheme: str | Scheme) -> Report:
    """Puts a stock model (see `geonorm.anatomy.FAMILIES`) under a scheme, in place, and says what it changed.

    Every weight stays as it is; norms of the scheme that stand where a stock norm stood take over its gains, others
    start as the scheme says.

    The residual stream is fp32 (fp64 for fp64) between the first block and the last, whatever the model's dtype; new
    parameters have the model's. Raises ConfigError, one line, for a model that cannot be changed so.
    """
    scheme = parse(scheme)
    check_model(model)
    check_scheme(model, scheme)
    return change(model, scheme, model.config.model_type)


def restore(model: Any) -> None:
    """Gives a model back its residual scheme, its norms and its type. Weights that were trained meanwhile, and what was
    set in the configuration, stay. ConfigError, one line, for a model that holds adapters."""
    undo = getattr(model, "__dict__", {}).get(RECORD)
    if undo is None:
        what = "was loaded from a folder, which holds no stock norms" if is_applied(model) else "has what it came with"
        raise ConfigError(f"nothing to restore: this {type(model).__name__} {what}")
    if any(type(module).__module__.partition(".")[0] == "peft" for module in model.modules()):
        raise ConfigError("this model has PEFT adapters: merge them or take them out first, then undo the scheme")
    undo()
    del vars(model)[RECORD]


def prepare_undo(model: nn.Module) -> Callable[[], None]:
    """What takes a change back. Modules that had left the model come to where its others are now, in their dtype and
    mode; those that stayed are as they are, and configurations say what was set meanwhile."""
    before = [(m, type(m), dict(m._modules), {k: vars(m)[k] for k in KEPT if k in vars(m)}) for m in model.modules()]
    return partial(take_back, model, before)  # whose arguments are copied with the model


def take_back(model: nn.Module, before: Sequence[tuple[nn.Module, Any, dict[str, Any], dict[str, Any]]]) -> None:
    here, configs = {id(module) for module in model.modules()}, {}
    for module, kind, children, attributes in before:
        whole = isinstance(module, AppliedBlock)
        gone = {k: old for k, old in children.items() if whole or isinstance(module._modules.get(k), Exit)}
        like: Any = next((p for p in module.parameters() if p.is_floating_point()), None) if gone else None
        for old in gone.values() if like is not None else ():
            for part in old.modules() if old is not None else ():
                if id(part) not in here:
                    fit_in(part, like, module.training)
        if whole:
            module._modules = children
        else:
            module._modules.update(gone)
        if whole or is_applied(module):
            module.__class__ = kind
        worn = vars(module).get("config")
        for name in KEPT:
            vars(module).pop(name, None)
        vars(module).update(attributes)
        if isinstance(worn, AppliedFields):
            if id(worn) not in configs:
                configs[id(worn)] = stock_config(worn, attributes["config"])
            vars(module)["config"] = configs[id(worn)]
    forget_hooks(model)


def fit_in(part: nn.Module, like: Tensor, training: bool) -> None:
    """Brings what a module holds itself to where `like` is, and its floating tensors to its dtype."""
    part._apply(lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype), recurse=False)
    part.training = training


def change(model: Any, scheme: Scheme, family: str) -> Report:
    before = {name: p.shape for name, p in model.named_parameters()}
    stock = {id(p) for p in model.parameters()}
    frozen = not any(p.requires_grad for p in model.parameters())
    removed = list(stock_norms(model))
    vars(model)[RECORD] = prepare_undo(model)
    try:
        dress(model, str(scheme), family)
        carried = replace_sites(model, scheme)
    except BaseException:
        restore(model)
        raise
    added = {name: p.numel() for name, p in model.named_parameters() if id(p) not in stock}
    assert sum(p.numel() for p in model.parameters()) == sum(added.values()) + sum(
        shape.numel() for name, shape in before.items() if not any(name.startswith(f"{path}.") for path in removed)
    )
    sites = sum(isinstance(module, Residual) for module in model.modules())
    kept = [path for path, p in model.named_parameters() if id(p) in carried]
    said = notes(scheme) + (note_trained(model) if frozen else [])
    return Report(model, str(scheme), family, sites, removed, added, kept, said)


def check_model(model: Any) -> None:
    name = type(model).__name__
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError("this model has PEFT adapters: apply the scheme first, then add them")
    inside = next((at for at in ("_orig_mod", "module") if isinstance(getattr(model, at, None), PreTrainedModel)), None)
    if inside is not None:
        raise ConfigError(f"this model is wrapped ({name}): apply to the one inside, model.{inside}, and wrap it again")
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"apply changes transformers models, not {name}; geonorm.Residual is for models of your own")
    if is_applied(model):
        raise ConfigError(f"{model.config.scheme} is already applied to this {name}: undo it first (hf.restore)")
    family = str(model.config.model_type)
    if family.startswith("geonorm"):
        raise ConfigError(f"{name} is geonorm's own model: its scheme is a field of its configuration")
    if family not in FAMILIES:
        raise ConfigError(
            f"apply does not know the family {family!r} of this {name}, only {', '.join(sorted(FAMILIES))}"
        )
    if getattr(model, "hf_quantizer", None) is not None or getattr(model.config, "quantization_config", None):
        raise ConfigError(f"this {name} is quantised: apply the scheme to the full-precision model")
    found = stacks_of(model)
    if not found or any("language_model" in stack.blocks for stack, _ in found):
        raise ConfigError(f"{name} has no blocks that apply knows; give it the text model alone")
    for stack, base in found:
        for block in blocks_of(model, stack, base):
            if not type(block).forward.__module__.startswith("transformers.models."):
                raise ConfigError(
                    f"{type(block).__name__} of this {name} has a forward that is not transformers' own, which apply "
                    "would replace; geonorm.Residual is for blocks of your own"
                )
            for branch in [branch for sublayer in stack.sublayers for branch in sublayer.branches]:
                weights = [p for path in branch.modules for p in block.get_submodule(path).parameters()]
                if not any(p.is_floating_point() for p in weights):
                    raise ConfigError(f"this {name} is quantised: apply the scheme to the full-precision model")
            if "forward" in vars(block) or hasattr(block, "_hf_hook"):
                raise ConfigError(f"the blocks of this {name} are wrapped (by accelerate or a patch): apply first")


def check_scheme(model: Any, scheme: Scheme) -> None:
    for stack, base in stacks_of(model):
        depth = len(blocks_of(model, stack, base))
        for kind, names in SLOTS.items():
            for layer in range(depth):
                site = Site(layer, kind, depth)
                part = scheme.resolve(site)
                if part.about.fresh:
                    raise ConfigError(f"{scheme} is for models trained from the start: {part.about.fresh}")
                wanted = [name for name in names if part.slot(name, (1, 8), 8, site) is not None]
                if wanted or part.constrains:
                    inside = (
                        f"modules inside a branch or head ({', '.join(wanted)})" if wanted else "constraints on weights"
                    )
                    raise ConfigError(
                        f"{scheme} needs {inside}, which a stock model does not have; train geonorm's own"
                    )


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


def note_trained(model: nn.Module) -> list[str]:
    """What trains of a model that was frozen, for whoever did that may not expect it."""
    trained = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    new = f"{sum(trained.values()):,} new parameters train: {list_paths(list(trained))}"
    return [f"your weights stay frozen; {new}"] if trained else []
