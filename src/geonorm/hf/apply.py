"""A scheme for a model that exists: `report = geonorm.hf.apply(model, "geonorm")`.

Every residual connection of a stock transformers model is replaced in place: attention, MLP and their dropout stay,
what they read and how their output is written is the scheme's, and the norms that the new scheme does not have are
gone. The model is then of another type: it saves and loads as that (see make_class.py). `report.undo()` takes
everything back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..errors import ConfigError, require
from ..measure.anatomy import FAMILIES, blocks_of, stacks_by_name
from ..measure.capture import listed_norms
from ..measure.observe import stacks_of
from ..measure.rebuild import CARRIED
from ..measure.recognise import recognise
from ..models.init import SLOTS
from ..norms import NormSpec
from ..parsing import list_paths
from ..residual import Residual
from ..schemes import Parts, Scheme, Site, parse, read_at
from .block import AppliedBlock, Exit, Stacks, replace_sites
from .make_class import AppliedFields, forget_hooks, is_applied, make_class, stock_config

RECORD = "_geonorm_undo"
REPLACED = ("config", "call", "_tp_plan", "_pp_plan", "_weight_conversions")
"""Attributes of modules that `apply` gives other values and `undo` gives back."""


@dataclass
class Report:
    """What `apply` changed. `print(report)` says it; `report.undo()` takes it back.

    >>> import transformers
    >>> from geonorm import hf
    >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    >>> report = hf.apply(transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **size)), "pre")
    >>> report.scheme, report.family, len(report.carried)
    ('pre', 'llama', 5)
    """

    model: Any = field(repr=False)
    scheme: str
    family: str
    sites: int
    """Sub-layers whose residual connection was replaced."""
    removed: list[str]
    """Paths of the stock norms that the scheme replaced."""
    added: dict[str, int]
    """Parameters that the scheme brought, by path, with their number of elements; carried ones among them."""
    carried: list[str]
    """Paths of added parameters that took over the gains of a stock norm."""

    def undo(self) -> None:
        restore(self.model)

    def __str__(self) -> str:
        kind = f"{type(self.model).__name__} ({self.family})"
        return (
            f"{self.scheme} on {kind}: {self.sites} residual connections replaced\n"
            f"  removed  {list_paths(self.removed)}\n"
            f"  added    {list_paths(list(self.added))}: {sum(self.added.values()):,} parameters, "
            f"{len(self.carried)} tensors carried over"
        )


def apply(model: Any, scheme: str | Scheme) -> Report:
    """Puts a model of transformers whose own scheme `scheme_of` knows under another one, in place, and says what it
    changed.

    Every weight stays as it is; norms of the scheme that stand where a stock norm stood take over its gains, others
    start as the scheme says.

    The residual stream is fp32 (fp64 for fp64) between the first block and the last, whatever the model's dtype; new
    parameters have the model's. Raises ConfigError, one line, for a model that cannot be changed so.

        >>> import transformers
        >>> from geonorm import hf
        >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **size))
        >>> report = hf.apply(model, "geonorm")
        >>> report.sites, type(model).__name__
        (4, 'GeonormLlamaForCausalLM')
        >>> report.undo()
        >>> type(model).__name__
        'LlamaForCausalLM'
    """
    scheme = parse(scheme)
    check_model(model)
    stacks = stacks_of(model)
    check_blocks(model, stacks)
    check_applicable(scheme, max(len(blocks_of(model, stack, base)) for stack, base in stacks))
    family, stock = model.config.model_type, {id(p) for p in model.parameters()}
    removed = [path for path, about in listed_norms(model, stacks) if about["role"] != "entry"]
    vars(model)[RECORD] = prepare_undo(model)
    try:
        make_class(model, scheme, family, stacks)
        replace_sites(model, scheme, stacks)
    except BaseException:
        restore(model)
        raise
    added = {name: p.numel() for name, p in model.named_parameters() if id(p) not in stock}
    sites = sum(isinstance(module, Residual) for module in model.modules())
    took_over = [path for path, p in model.named_parameters() if getattr(p, CARRIED, False)]
    return Report(model, str(scheme), family, sites, removed, added, took_over)


def scheme_of(model: Any) -> Scheme:
    """The residual scheme of a model of transformers. Of the families in `geonorm.anatomy.FAMILIES` (encoders, vision,
    encoder-decoders) it is known by name; that of a causal model is recognised by the structure of its layers.

    A pass over random ids is recorded, and every sub-layer is rebuilt from its own parts under the scheme: what its
    branch reads and the stream after it must be what the model computed (see `measure.recognise`). Of a model that
    `apply` has changed, and of geonorm's own, it is the scheme in the configuration. Raises ConfigError, one line that
    says what was seen, for any other rule.

        >>> import transformers
        >>> from geonorm import hf
        >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **size))
        >>> str(hf.scheme_of(model))
        'pre(entry=embedding)'
    """
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"scheme_of reads transformers models, not {type(model).__name__}")
    if isinstance(scheme := getattr(model.config, "scheme", None), str):
        return parse(scheme)
    stack, *_ = stacks_by_name(model.config) or [recognise(model)]
    return parse(stack.scheme or "")


def restore(model: Any) -> None:
    """Gives a model back its residual scheme, its norms and its type. Matrices that were trained meanwhile stay, and
    what was set in the configuration; the gains of its norms are those from before. ConfigError, one line, for a model
    that nothing was done to.

        >>> import transformers
        >>> from geonorm import hf
        >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
        >>> model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=16, **size))
        >>> _ = hf.apply(model, "peri")
        >>> hf.restore(model)
        >>> type(model).__name__
        'LlamaForCausalLM'
    """
    undo = vars(model).get(RECORD)
    if undo is None:
        raise ConfigError(
            f"nothing to restore: this {type(model).__name__} is as it was built, or loaded from a folder"
        )
    require(
        not hasattr(model, "peft_config"), "this model has PEFT adapters, which would go: merge or unload them first"
    )
    undo()
    del vars(model)[RECORD]


def prepare_undo(model: nn.Module) -> Callable[[], None]:
    """What takes a change back. Modules that had left the model come to where its others are now, in their dtype and
    mode; those that stayed are as they are, and configurations say what was set meanwhile."""
    before = [
        (m, type(m), dict(m._modules), {name: vars(m)[name] for name in REPLACED if name in vars(m)})
        for m in model.modules()
    ]
    return partial(take_back, model, before)  # whose arguments are copied with the model


def take_back(model: nn.Module, before: Sequence[tuple[nn.Module, Any, dict[str, Any], dict[str, Any]]]) -> None:
    """Give every module of `before` its class, children and attributes back. A child that had left comes to the device
    and dtype of its parent. Modules that shared one configuration share one again."""
    present, configs = {id(module) for module in model.modules()}, {}
    for module, stock_class, children, attributes in before:
        is_block = isinstance(module, AppliedBlock)
        # a block gets all children back, or what was set in their place since; elsewhere only the norm after the
        # blocks was replaced, by an Exit
        returning = {
            key: vars(module).get(key, old)
            for key, old in children.items()
            if is_block or isinstance(module._modules.get(key), Exit)
        }
        for part in [part for old in returning.values() if old is not None for part in old.modules()]:
            if id(part) not in present:
                fit_in(part, next(p for p in module.parameters() if p.is_floating_point()), module.training)
        module._modules = returning if is_block else {**module._modules, **returning}
        if is_block or is_applied(module):
            module.__class__ = stock_class
        applied_config = vars(module).get("config")
        for name in (*REPLACED, *children):
            vars(module).pop(name, None)
        vars(module).update(attributes)
        if isinstance(applied_config, AppliedFields):
            if id(applied_config) not in configs:
                configs[id(applied_config)] = stock_config(applied_config, attributes["config"])
            vars(module)["config"] = configs[id(applied_config)]
    forget_hooks(model)


def fit_in(part: nn.Module, like: Tensor, training: bool) -> None:
    """Brings what a module holds itself to where `like` is, and its floating tensors to its dtype."""
    part._apply(lambda t: t.to(like.device, like.dtype if t.is_floating_point() else t.dtype), recurse=False)
    part.training = training


def check_model(model: Any) -> None:
    name = type(model).__name__
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        raise ConfigError("this model has PEFT adapters: apply the scheme first, then add them")
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(f"apply changes transformers models, not {name}; geonorm.Residual is for models of your own")
    if is_applied(model):
        raise ConfigError(
            f"{model.config.scheme} is already applied to this {name}: begin from the stock "
            "model (hf.restore gives it back, unless this was loaded from a folder)"
        )
    family = str(model.config.model_type)
    require(
        not family.startswith("geonorm"), f"{name} is geonorm's own model: its scheme is a field of its configuration"
    )
    if (
        getattr(model, "hf_quantizer", None) is not None
        or not all(p.is_floating_point() for p in model.parameters())
        or any("quantized" in type(module).__module__ for module in model.modules())
    ):
        raise ConfigError(f"this {name} is quantised: apply the scheme to the full-precision model")
    require(
        not any("forward" in vars(module) for module in model.modules()),
        f"modules of this {name} are wrapped (by accelerate or a patch): apply first",
    )


def check_blocks(model: Any, stacks: Stacks) -> None:
    """ConfigError for a model whose blocks are those of a part of it, and for blocks of a family that is known by name
    which are not transformers' own."""
    name = type(model).__name__
    known = {part for stack, base in stacks for block in blocks_of(model, stack, base) for part in block.modules()}
    if not stacks or {part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)} - known:
        raise ConfigError(f"{name} has blocks that apply does not know; give it the text model alone")
    require(
        all(parse(stack.scheme or "").streams == 1 for stack, _ in stacks),
        f"the streams of {name} part and meet outside of its blocks: apply changes models of one stream",
    )
    named = [stack for stack in stacks if model.config.model_type in FAMILIES]
    for block in [block for stack, base in named for block in blocks_of(model, stack, base)]:
        if not type(block).forward.__module__.startswith("transformers.models."):
            raise ConfigError(
                f"{type(block).__name__} of this {name} has a forward that is not transformers' own, which apply "
                "would replace; geonorm.Residual is for blocks of your own"
            )


def check_applicable(scheme: Scheme, depth: int) -> None:
    """ConfigError for a scheme that needs more than what stands around a sub-layer."""
    for site, names in (
        (Site(layer, kind, depth, 3), names) for kind, names in SLOTS.items() for layer in range(depth)
    ):
        part = scheme.resolve(site)
        require(
            not part.about.why_from_start, f"{scheme} is for models trained from the start: {part.about.why_from_start}"
        )
        slots = [name for name in names if part.slot(name, (1, 8), 8, site) is not None]
        if slots or part.constrains:
            needed = f"modules inside a branch or head ({', '.join(slots)})" if slots else "constraints on weights"
            raise ConfigError(f"{scheme} needs {needed}, which a stock model does not have; train geonorm's own")
        parts = Parts(part, site, NormSpec("rms", 8))
        if site.kind != "exit" and isinstance(read_at(part, torch.zeros(1, part.streams, 8), parts(), site)[0], tuple):
            raise ConfigError(f"{scheme} gives an attention three inputs, a stock one takes one")
