"""LoRA and IA3 on our models and on those that a scheme was applied to: PEFT finds where to put them without being
told, and by the names that recipes for Llama, GPT-2 or GPT-NeoX use."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from ..errors import ConfigError
from ..sites.anatomy import blocks_of, join_path
from ..sites.watch import stacks_of

KINDS = ("geonorm", "geonorm_encoder_decoder")
"""Our models of text, by `config.model_type`."""
OURS = ("q", "k", "v", "o", "up", "gate", "down")
"""What the matrices of a block are called here."""
CALLED = {
    **{f"{name}_proj": (name,) for name in OURS},
    "qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up"), "out_proj": ("o",), "fc1": ("up", "gate"),
    "fc2": ("down",), "c_attn": ("q", "k", "v"), "c_fc": ("up", "gate"), "c_proj": ("o", "down"),
    "query": ("q",), "key": ("k",), "value": ("v",),
    "query_key_value": ("q", "k", "v"), "dense": ("o",), "dense_h_to_4h": ("up", "gate"), "dense_4h_to_h": ("down",),
}  # fmt: skip
"""What they are called in Llama, Phi-3, OPT, GPT-2, BERT and GPT-NeoX; a matrix there may be several here."""
BERT = {"query", "key", "value"}
"""Where these are named, `dense` means what it does in BERT: every other matrix of a block."""
BERT_DENSE = ("o", "up", "gate", "down")
ENDS = ("lm_head", "embed_tokens")
"""What has their names here too."""
TARGETS = ["branch.q", "attn.q", "branch.v", "attn.v"]
"""Queries and values, as PEFT's table has it for most models; "all-linear" for every matrix but the head."""
BLOCKS, ALL = "blocks", "all-linear"
ATTENTION, MLP = OURS[:4], OURS[4:]
LAYER = re.compile(r"(?:.*?\.)??(?:(encoder|decoder)\.)?(?:layers?|h|blocks?)\.(\d+)\.(.*)")
"""What comes before the name of a matrix: in Llama, BERT and GPT-2, and in the stacks of BART."""
INSIDE = {
    "cross": ("cross|encoder_attn", ATTENTION),
    "attn": ("attn|attention", ATTENTION),
    "mlp": ("mlp|feed_forward|intermediate", MLP),
}
"""The sublayers of a block, what they are called elsewhere, and their matrices."""
PARENTS = {name: ("branch", "attn" if name in ATTENTION else "mlp") for name in OURS} | {
    "gate": ("mlp.branch", "branch.mlp")
}
"""What they lie in, in blocks in sequence and side by side; attention may have a gate, too, which nobody else names."""
KEYS_AND_VALUES = ["branch.k", "branch.v", "attn.k", "attn.v"]
"""Of blocks in sequence and side by side; norms on keys have names that end in k, too."""
DOWN = ["branch.down", "mlp.down"]
TABLES, TUNERS = "peft.utils.constants", "peft.tuners.tuners_utils"
EXPERTS = "peft.utils.transformers_weight_conversion"


def introduce() -> None:
    """Enters our models into the tables by which PEFT finds `target_modules` where a user names none, and makes it read
    the names of others: now, or when PEFT is imported. It takes seconds, and most programs do without."""
    for name, act in ((TABLES, enter), (TUNERS, teach)):
        if name in sys.modules:
            act(sys.modules[name])
        elif not any(isinstance(finder, Introduction) and finder.name == name for finder in sys.meta_path):
            sys.meta_path.insert(0, Introduction(name, act))


def enter(tables: Any) -> None:
    for kind in KINDS:
        tables.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(kind, TARGETS)
        tables.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING.setdefault(kind, [*KEYS_AND_VALUES, *DOWN])
        tables.TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING.setdefault(kind, DOWN)


def teach(tuners: Any) -> None:
    """Makes every tuner translate what it is asked for before it looks for it: when it is made, for some look for
    matrices then, and when another adapter is put in."""
    begin, inject = tuners.BaseTuner.__init__, tuners.BaseTuner.inject_adapter
    if hasattr(inject, "taught"):
        return

    @wraps(begin)
    def begun(tuner: Any, model: Any, peft_config: Any, adapter_name: str, *args: Any, **settings: Any) -> None:
        adapt(peft_config[adapter_name] if isinstance(peft_config, dict) else peft_config, model)
        begin(tuner, model, peft_config, adapter_name, *args, **settings)

    @wraps(inject)
    def injected(tuner: Any, model: Any, adapter_name: str, *args: Any, **settings: Any) -> Any:
        adapt(tuner.peft_config[adapter_name], model)
        return inject(tuner, model, adapter_name, *args, **settings)

    injected.taught = True  # type: ignore[attr-defined]
    tuners.BaseTuner.__init__, tuners.BaseTuner.inject_adapter = begun, injected


def adapt(config: Any, model: Any) -> None:
    """Puts names that mean matrices of this model in the place of those that an adapter's settings have; twice is as
    good as once."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind in KINDS:
        chosen, stacks = chosen_layers(config) is not None, kind == KINDS[1]
        for field in ("target_modules", "exclude_modules", "feedforward_modules"):
            if isinstance(names := getattr(config, field, None), (list, set, tuple)):
                setattr(config, field, translate(names, not chosen, stacks, field))
        for field in ("rank_pattern", "alpha_pattern"):
            if isinstance(given := getattr(config, field, None), dict):
                setattr(config, field, translate_keys(given, stacks, field))
        if chosen and getattr(config, "layers_pattern", None):
            config.layers_pattern = BLOCKS
    elif kind == "geonorm_applied":
        follow(config, model)


def translate(names: Collection[str], pattern: bool = True, stacks: bool = False, field: str = "target_modules") -> Any:
    """A list of names in other families as the pattern that finds the same matrices here, `["q_proj", "v_proj"]` as
    `(.*\\.)?(branch\\.q|attn\\.q|branch\\.v|attn\\.v)`, or without `pattern` as a list, the only one that PEFT takes
    together with `layers_to_transform`; one in which no such name is stays what it is. With `stacks` an encoder and a
    decoder are told apart. ConfigError, of this field, for a name beside them that means nothing here."""
    last = {name.rpartition(".")[2] for name in names}
    if not last & set(CALLED):
        return names
    found = {name: endings(name, stacks, bert=bool(BERT & last)) for name in sorted(names)}
    if strange := [name for name in found if not found[name]]:
        raise strange_error(field, strange)
    ends = list(dict.fromkeys(end for each in found.values() for end in each))
    return rf"(.*\.)?({'|'.join(map(re.escape, ends))})" if pattern else ends


def endings(name: str, stacks: bool, bert: bool = False) -> list[str]:
    """What the paths of the matrices end in that a name means, which may say the stack, the layer and the sublayer;
    none where it means nothing here."""
    above, _, leaf = name.rpartition(".")
    if leaf in ENDS:
        return [leaf]
    if leaf in OURS and (not above or above.rpartition(".")[2] in ("branch", *INSIDE)):
        return [name] if above else [f"{parent}.{leaf}" for parent in PARENTS[leaf]]
    stack, layer, inside = at.groups("") if (at := LAYER.fullmatch(f"{above}.")) else ("", "", f"{above}.")
    place = next((place for place, (words, _) in INSIDE.items() if re.search(words, inside)), "")
    if re.search(r"\b(\d+|encoder|decoder)\.", inside) or not (place or inside in (".", "", "self.", "output.")):
        return []
    if layer and inside == "output.":
        place = "mlp"  # of BERT; in attention the same name is further down
    head = f"{stack + '.' if stack and stacks else ''}{BLOCKS}.{layer}." if layer else ""
    found = []
    for each in called(leaf, inside, bert):
        where = place or ("attn" if each in ATTENTION else "mlp")
        if each in INSIDE[where][1]:
            short = [f"{parent}.{each}" for parent in PARENTS[each]]
            found += [f"{head}{where}.branch.{each}", f"{head}both.branch.{where}.{each}"] if place or layer else short
    return found


def called(leaf: str, inside: str, bert: bool) -> tuple[str, ...]:
    """The matrices here that are called so there; `dense` is many in BERT."""
    if leaf == "dense" and (bert or "intermediate." in inside or "output." in inside):
        return ("up", "gate") if "intermediate." in inside else ("o", "down") if "output." in inside else BERT_DENSE
    return CALLED.get(leaf, ())


def strange_error(field: str, names: Collection[str]) -> ConfigError:
    return ConfigError(
        f"{field} {' '.join(names)}: no such matrix here; those of a block are {' '.join(OURS)}, and "
        f"{' '.join(CALLED)} are read as what they are in other families"
    )


def translate_keys(given: Mapping[str, Any], stacks: bool = False, field: str = "rank_pattern") -> dict[str, Any]:
    """Ranks or alphas by names in other families as ones by patterns of PEFT's that mean the same matrices here; other
    patterns stay what they are. ConfigError, of this field, for a path that means nothing here."""
    found = {}
    for key, value in given.items():
        if key.rpartition(".")[2] in CALLED and re.fullmatch(r"[\w.]*", key):
            ends = endings(key, stacks)
            if not ends:
                raise strange_error(field, [key])
            key = f"({'|'.join(map(re.escape, ends))})"
        found[key] = value
    return found


def follow(config: Any, model: Any) -> None:
    """On a model that a scheme was applied to: what is named, or where nothing is what PEFT's tables say of its family,
    means the matrices of the stock model, wherever they are now."""
    tables, kind = sys.modules[TABLES], str(getattr(config.peft_type, "value", config.peft_type))
    paths = stock_paths(model)
    find_experts(config, model, paths)
    for field, table in (("target_modules", "TARGET"), ("feedforward_modules", "FEEDFORWARD"), ("exclude_modules", "")):
        names = getattr(config, field, ())
        if names is None and table and not getattr(config, "target_parameters", None):
            known = getattr(tables, f"TRANSFORMERS_MODELS_TO_{kind}_{table}_MODULES_MAPPING", {})
            names = known.get(model.config.stock_type)
        pattern = isinstance(names, str)
        if names and names != ALL and (pattern or not set(names) <= set(paths)):
            found = find_again(names, paths)
            kept = pattern or found == set(names) or not table  # PEFT takes no layers beside a pattern
            setattr(config, field, found if kept else in_layers(found, config))
    parameters = targeted_parameters(config, model, paths)
    if parameters:
        config.target_parameters = find_again(config.target_parameters, parameters)
    for field in ("rank_pattern", "alpha_pattern"):
        if isinstance(given := getattr(config, field, None), dict):
            setattr(config, field, find_keys_again(given, paths | parameters))


def find_experts(config: Any, model: Any, paths: Mapping[str, str]) -> None:
    """Experts that are parameters now, and no modules: PEFT itself puts `target_parameters` in the place of their old
    names (w1 w2 w3, "all-linear"), by the type of the model, which is the stock one here. A pattern that means none of
    them is left to be found again, for PEFT makes plain names of it."""
    names, modules = getattr(config, "target_modules", None), dict(model.named_modules())
    if not names or (not isinstance(names, str) and set(names) <= set(paths)):
        return
    seen, trial = dict(paths), copy.copy(config)
    if names == ALL:
        linear = sys.modules[TUNERS]._maybe_include_all_linear_layers(copy.copy(config), model).target_modules
        seen = {here: before for here, before in paths.items() if here in linear}
    stock = SimpleNamespace(
        config=SimpleNamespace(model_type=model.config.stock_type),
        named_modules=lambda: [(before, modules[here]) for here, before in seen.items()],
        named_parameters=lambda: [(before, None) for before in parameter_paths(model, paths).values()],
    )
    for field in ("rank_pattern", "alpha_pattern"):
        setattr(trial, field, dict(getattr(config, field, None) or {}))
    import_module(EXPERTS).convert_peft_config_for_transformers(trial, stock, None)
    before, after = (set(getattr(each, "target_parameters", None) or ()) for each in (config, trial))
    if after == before and (isinstance(names, str) or set(trial.target_modules) == set(names)):
        return
    for field in ("target_modules", "target_parameters", "rank_pattern", "alpha_pattern"):
        setattr(config, field, getattr(trial, field))


def parameter_paths(model: Any, paths: Mapping[str, str]) -> dict[str, str]:
    """Where parameters of a stock model are under a scheme, and where they were, whatever adapters are around them."""
    found = {}
    for path, _ in model.named_parameters():
        module, _, name = path.replace(".base_layer", "").rpartition(".")
        if module in paths:
            found[f"{module}.{name}"] = f"{paths[module]}.{name}"
    return found


def targeted_parameters(config: Any, model: Any, paths: Mapping[str, str]) -> dict[str, str]:
    """Of those the ones that an adapter is for, by their names in the stock model or here."""
    ends = tuple(f".{name}" for name in getattr(config, "target_parameters", None) or ())
    found = parameter_paths(model, paths) if ends else {}
    return {here: before for here, before in found.items() if f".{before}".endswith(ends) or f".{here}".endswith(ends)}


def stock_paths(model: Any) -> dict[str, str]:
    """Where modules of a stock model are under a scheme, and where they were."""
    found, inside = {}, []
    for stack, base in stacks_of(model):
        for layer, block in enumerate(blocks_of(model, stack, base)):
            before = join_path(base, stack.blocks, str(layer))
            inside.append(f"{before}.")
            for sub in stack.sublayers:
                for number, (chain, branch) in enumerate(
                    zip(block.residuals[sub.kind].branch.chains, sub.branches, strict=True)
                ):
                    here = f"{before}.residuals.{sub.kind}.branch.chains.{number}.steps"
                    for place, (path, step) in enumerate(zip(branch.modules, chain.steps, strict=False)):
                        for inner, _ in step.named_modules():
                            found[join_path(here, str(place), inner)] = join_path(before, path, inner)
    return found | {name: name for name, _ in model.named_modules() if name and not name.startswith(tuple(inside))}


def find_again(names: Collection[str] | str, paths: Mapping[str, str]) -> Any:
    """The names, or the pattern, where the same modules go by them under the scheme; else the paths of those there."""
    pattern = re.compile(names) if isinstance(names, str) else None

    def named(path: str) -> bool:
        if pattern:
            return pattern.fullmatch(path) is not None
        return any(path == name or path.endswith(f".{name}") for name in names)

    was = {here for here, before in paths.items() if named(before)}
    same = not was or was == {here for here in paths if named(here)}
    return (names if pattern else set(names)) if same else was


def find_keys_again(given: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Ranks or alphas by patterns of PEFT's, of which the first that fits counts, as ones by the paths of what they
    mean, where the patterns do not mean the same under the scheme."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        pattern = re.compile(rf"(.*\.)?({key})$")
        was = [here for here, before in paths.items() if pattern.match(before)]
        for name in [key] if not was or was == [here for here in paths if pattern.match(here)] else was:
            found.setdefault(name, value)
    return found


def in_layers(paths: set[str], config: Any) -> set[str]:
    """Those in the blocks that an adapter is for; PEFT itself asks that of names alone, not of whole paths."""
    layers = chosen_layers(config)
    if layers is None:
        return paths
    places = {path: path.split(".residuals.")[0].rpartition(".")[2] for path in paths if ".residuals." in path}
    return {path for path, layer in places.items() if int(layer) in layers}


def chosen_layers(config: Any) -> list[int] | None:
    """The blocks that an adapter is for; None: all of them."""
    layers = getattr(config, "layers_to_transform", None)
    return [layers] if isinstance(layers, int) else layers or None


class Introduction(MetaPathFinder):
    """Sees a module of PEFT when it is imported, once; finds nothing itself."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self.name, self.act = name, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        run = spec.loader.exec_module

        def run_and_act(module: Any) -> None:
            run(module)
            self.act(module)

        spec.loader.exec_module = run_and_act
        return spec
