"""The type of a stock model under one of our schemes, so that it is saved, and loaded again, as what it is.

`GeonormLlamaForCausalLM` is a Llama whose configuration says `geonorm_applied`, a type that transformers without
geonorm does not know. In config.json the number of layers is a sentence, at which a stock class stops. Classes are made
when they are needed; after `import geonorm.hf` the Auto classes load such folders.
"""

import copy
from dataclasses import asdict, replace
from functools import cache, wraps
from typing import Any, ClassVar

from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
from transformers.utils import output_capturing

from .. import __version__
from ..errors import ConfigError, require
from ..measure.observe import stacks_of
from ..norms import Norm
from ..residual import Residual, StreamEnd
from ..schemes import Scheme, parse, sources_of
from .block import StockBranch, replace_sites
from .config import from_folder
from .loading import ReadsFolders, loaded_kept

TYPE = "geonorm_applied"
OURS = ("scheme", "scheme_source", "stock_type", "stock_stacks", "geonorm_version")
"""Fields that a configuration of an applied model has beside the stock ones."""
GUARD = "num_hidden_layers"
"""A field of every stock configuration. In config.json it holds a sentence in place of the number of layers, so that a
stock class, which checks its type, refuses the folder."""


class AppliedConfig(PreTrainedConfig):
    """What AutoConfig finds for the model type of an applied model. What it makes is of the family's own class."""

    model_type = TYPE

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        family = config_dict["stock_type"]
        require(
            family in CONFIG_MAPPING, f"{family} is a model of code from elsewhere: register its Auto classes first"
        )
        stock: Any = CONFIG_MAPPING[family]
        return config_class(stock).from_dict(config_dict, **kwargs)


PER_LAYER = {"layer_types": "stock_layer_types", "per_layer_config": "stock_per_layer_config"}
"""Fields that transformers compares with the number of layers, and the names that they have in config.json instead: the
number of layers is a sentence there."""


class AppliedFields:
    """Mixed into a stock configuration: `scheme`, `stock_type`."""

    scheme: str
    stock_type: str
    attribute_map: ClassVar[dict[str, str]]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        config_dict = {"auto_map": {}, **from_folder(config_dict, kwargs), "model_type": TYPE}
        if layers := config_dict.pop("stock_layers", None):
            config_dict |= dict.fromkeys(cls.guarded(), layers)
        fields = {name: field for field, name in PER_LAYER.items()}
        config_dict = {fields.get(key, key): value for key, value in config_dict.items()}
        return super().from_dict(config_dict, **kwargs)  # type: ignore[misc]

    @classmethod
    def guarded(cls) -> set[str]:
        """Both names of the number of layers, of which a stock class reads one."""
        return {GUARD, cls.attribute_map.get(GUARD, GUARD)}

    def to_diff_dict(self) -> dict[str, Any]:
        """What config.json holds."""
        guard = f"no stock {self.stock_type} but one under {self.scheme}: import geonorm.hf, then use an Auto class"
        saved = {**super().to_diff_dict(), **dict.fromkeys(sorted(self.guarded()), guard)}  # type: ignore[misc]
        saved |= {"stock_layers": getattr(self, GUARD), "geonorm_version": __version__}
        return {PER_LAYER.get(key, key): value for key, value in saved.items() if key != "auto_map"}


class AppliedModel(ReadsFolders):
    """Mixed into every stock model class inside a model that a scheme was applied to."""

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        super().__init__(config, *inputs, **kwargs)  # type: ignore[call-arg]
        model: Any = self
        if not any(isinstance(module, Residual) for module in model.modules()):
            # what loading does: the change of `apply` to a model that was just built of its stock parts
            rule = parse(config.scheme)
            model.config.scheme = str(rule)
            stacks = stacks_of(model)
            make_class(model, rule, model.config.stock_type, stacks)
            replace_sites(model, rule, stacks)

    def _init_weights(self, module: nn.Module) -> None:
        """What a file held stays: a module is handed over, too, for a buffer alone that no file holds."""
        if isinstance(module, Residual):
            module.layer.fill_(module.index)
        if isinstance(module, (Residual, StreamEnd)):
            with loaded_kept(module.own):
                module.own.reset_parameters()
        elif isinstance(module, Norm):  # by a name such as theirs transformers would take one for its own
            with loaded_kept(module):
                module.reset_parameters()
        else:
            super()._init_weights(module)  # type: ignore[misc]


@cache
def config_class(stock: Any) -> Any:
    """The configuration of a family under a scheme; the family's models under a scheme become known to Auto classes."""
    body = {"model_type": TYPE, "__module__": __name__, "_auto_class": None}
    applied: Any = type(f"Geonorm{stock.__name__}", (AppliedFields, stock), body)
    for name in dir(modeling_auto):
        auto: Any = getattr(modeling_auto, name)
        models = getattr(auto, "_model_mapping", None)
        if name.startswith("Auto") and models is not None and stock in models:
            kinds = models[stock]
            kind = kinds[0] if isinstance(kinds, tuple) else kinds
            auto.register(applied, applied_class(kind, applied), exist_ok=True)
            if auto is modeling_auto.AutoModelForCausalLM:  # by these names Trainer knows whose labels to shift
                CAUSAL[f"{TYPE}_{stock.model_type}"] = f"Geonorm{kind.__name__}"
    return applied


@cache
def applied_class(stock: Any, config: Any) -> Any:
    """The class of a stock model under a scheme."""
    # by its module transformers knows what the stock model can do; code from elsewhere is not saved beside it
    body = {"config_class": config, "__module__": stock.__module__, "_auto_class": None}
    return type(f"Geonorm{stock.__name__}", (AppliedModel, stock), body)


def is_applied(model: Any) -> bool:
    return isinstance(model, AppliedModel)


def make_class(model: Any, scheme: Scheme, family: str, stacks: Any) -> None:
    """Makes the model, and every model inside it, of the type that says what it is; configurations are copied first,
    because other models may share them."""
    guard_saving()
    forget_hooks(model)
    copies: dict[int, Any] = {}
    stock: Any = type(model.config)
    kind = stock if is_applied(model) else config_class(stock)
    says: dict[str, Any] = {"scheme": str(scheme), "stock_type": family, "model_type": TYPE}
    says["stock_stacks"] = [asdict(stack) for stack, _ in stacks]
    if source := sources_of(scheme):
        says["scheme_source"] = source
    for module in model.modules():
        old = getattr(module, "config", None)
        if old is not None and type(old) is stock and stock is not kind:
            if id(old) not in copies:
                copies[id(old)] = new = copy.deepcopy(old)
                new.__class__ = kind
                for key, value in says.items():
                    setattr(new, key, value)
            module.config = copies[id(old)]
    for module in [module for module in model.modules() if isinstance(module, PreTrainedModel)]:
        if not is_applied(module):
            stock_class: Any = type(module)
            module.__class__ = applied_class(stock_class, kind)
        record_outputs(module)
        vars(module).update(_tp_plan={}, _pp_plan={}, _weight_conversions=[])  # they name the stock paths


@cache
def guard_saving() -> None:
    """From now on a stock model that holds an applied one refuses to be saved as what it no longer is. The inner model
    does not know its owner, and transformers has no hook before a save, so the method itself gets a check."""
    save = PreTrainedModel.save_pretrained

    @wraps(save)
    def save_pretrained(self: Any, *args: Any, **settings: Any) -> None:
        if not is_applied(self) and not getattr(self, "_hf_peft_config_loaded", False):  # adapters are saved alone
            for path, module in self.named_modules():
                if is_applied(module):
                    raise ConfigError(
                        f"the folder would say that this is a stock {type(self).__name__}, but {path} in it is under "
                        f"{module.config.scheme}: save that part alone, or apply the scheme to the whole model"
                    )
        save(self, *args, **settings)

    PreTrainedModel.save_pretrained = save_pretrained


def stock_config(applied: Any, before: Any) -> Any:
    """The stock configuration of an applied one, with what was set in it since. `before`, from which that was made,
    where nothing was set."""
    config = copy.deepcopy(applied)
    config.__class__ = type(before)
    for key in (*OURS, "model_type"):
        vars(config).pop(key, None)
    config.architectures = before.architectures  # saving writes the applied class there
    return before if vars(config) == vars(before) else config


def record_outputs(module: Any) -> None:
    """Tells transformers where to record hidden states and attentions of a model now. It looks this up by the name of
    the class, and there is no public way to add a class. T5 finds attentions by layers that are gone, GPT-2 those to an
    encoder by a path. A branch returns what its attention does."""
    recorded = module._can_record_outputs
    for key, kind in (("attentions", "attn"), ("cross_attentions", "cross")):
        if recorded and isinstance(recorded.get(key), output_capturing.OutputRecorder):
            recorder = replace(recorded[key], target_class=StockBranch, layer_name=f"residuals.{kind}")
            recorded = {**recorded, key: recorder}
    output_capturing._CAN_RECORD_REGISTRY[module] = recorded


def forget_hooks(model: nn.Module) -> None:
    """Removes the hooks by which transformers records outputs. It registers them once; for other modules it must do so
    again."""
    for module in model.modules():
        for key, hook in list(module._forward_hooks.items()):
            if getattr(hook, "__name__", "") == "output_capturing_hook":
                del module._forward_hooks[key]
        vars(module).pop("_output_capturing_hooks_installed", None)


AutoConfig.register(TYPE, AppliedConfig, exist_ok=True)
