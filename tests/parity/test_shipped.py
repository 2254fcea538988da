"""Residual rules of shipped layers, around known sub-layers: outputs and gradients are those of our residuals."""

import copy
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site

pytest.importorskip("transformers.models.muse_spark", reason="families of 2026 need transformers 5.24")
WIDTH, DEPTH, LAYER = 16, 4, 2
SIZES = {
    "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": DEPTH, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 29, "mlp_layer_types": ["dense"] * DEPTH,
    "hidden_size_per_layer_input": 0, "initializer_range": WIDTH**-0.5, "ngpt_alpha_init": 0.05, "n_input_layers": 1,
    "n_recurrent_layers": 2, "n_output_layers": 1,
    **dict.fromkeys(("full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor"), (2 * DEPTH) ** 0.25),
}  # fmt: skip
POST, MIDDLE = "post_attention_layernorm", ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
SCALING = {"scale": "residual_scale", "update_scale": "hidden_states_scale", "update_bias": "hidden_states_bias"}
# scheme: file, class and configuration of the layer; for attention and MLP where our weights stand, and what is added
Weights = dict[str, tuple[str, float]]
RULES: dict[str, tuple[str, str, str, Weights, Weights]] = {
    "beam": (
        "beam", "BeamDecoderLayer", "BeamConfig",
        {"input.weight": ("input_layernorm.weight", 0), "output.weight": (f"{POST}.weight", 0)},
        {"input.weight": (MIDDLE[0], 0), "output.weight": (MIDDLE[1], 0)},
    ),
    "muse": (
        "muse_spark", "MuseSparkTextDecoderLayer", "MuseSparkTextConfig",
        {"input.weight": ("input_layernorm.weight", 1), "gate": ("post_attention_residual_gate.gate", 0)},
        {"input.weight": (MIDDLE[0], 1), "output.weight": (MIDDLE[1], 1),
         "gate": ("post_feedforward_residual_gate.gate", 0)},
    ),
    "peri(layer_scalar=learned)": (
        "gemma4", "Gemma4TextDecoderLayer", "Gemma4TextConfig",
        {"input.weight": ("input_layernorm.weight", 0), "output.weight": (f"{POST}.weight", 0)},
        {"input.weight": (MIDDLE[0], 0), "output.weight": (MIDDLE[1], 0), "scalar": ("layer_scalar", 0)},
    ),
    "affine": (
        "zaya", "ZayaDecoderLayer", "ZayaConfig",
        {"input.weight": ("input_layernorm.weight", 0), "bias": ("post_attention_residual_scale.residual_bias", 0),
         **{ours: (f"post_attention_residual_scale.{theirs}", 0.0) for ours, theirs in SCALING.items()}},
        {"input.weight": (f"{POST}.weight", 0), "bias": ("post_mlp_residual_scale.residual_bias", 0),
         **{ours: (f"post_mlp_residual_scale.{theirs}", 0.0) for ours, theirs in SCALING.items()}},
    ),
    "deepnorm": (
        "minimax", "MiniMaxDecoderLayer", "MiniMaxConfig",
        {"stream.weight": (f"{POST}.weight", 0)}, {"stream.weight": ("next.weight", 0)},
    ),
    "ngpt": (
        "dory", "DoryDecoderLayer", "DoryConfig", {"alpha.weight": ("lambda_1", 0)}, {"alpha.weight": ("lambda_2", 0)},
    ),
}  # fmt: skip
MOVED = ("deepnorm", "ngpt")
"""The norm of the stream stands where the next sub-layer reads: that of the MLP is the next block's."""


class Known(nn.Module):
    def __init__(self, answers: Callable[[Tensor], Any] = lambda u: u) -> None:
        super().__init__()
        self.matrix, self.answers = nn.Linear(WIDTH, WIDTH), answers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        y = args[0] if args else kwargs["hidden_states"]
        return self.answers(torch.tanh(self.matrix(y)))


@pytest.mark.parametrize("scheme", RULES)
def test_the_rule_of_a_shipped_layer(scheme: str, stay_wide: None) -> None:
    family, layer_name, config_name, *places = RULES[scheme]
    files = import_module(f"transformers.models.{family}.modeling_{family}")
    configs = import_module(f"transformers.models.{family}.configuration_{family}")
    config = getattr(configs, config_name)(**SIZES)
    config.post_norm_eps = eps = getattr(config, "rms_norm_eps", 1e-6)
    torch.manual_seed(0)
    theirs = getattr(files, layer_name)(config, LAYER).double()
    theirs.self_attn = Known(lambda u: (u, None))
    theirs.mlp = Known((lambda u: (u, None)) if family == "zaya" else lambda u: u)
    theirs.next = copy.deepcopy(theirs.input_layernorm)
    theirs.double()
    for p in theirs.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    for scalar in theirs.buffers():
        scalar.fill_(0.7).requires_grad_()
    ours = nn.Sequential()
    for kind, known, weights in zip(("attn", "mlp"), (theirs.self_attn, theirs.mlp), places, strict=True):
        branch = Known().double()
        branch.load_state_dict(known.state_dict())
        residual = Residual(branch, scheme, Site(LAYER, kind, DEPTH), WIDTH, eps=eps).double()
        if "unit" in residual.own:  # nGPT's norm has no eps, Dory's has
            residual.own["unit"].eps = eps
        assert {name for name, _ in residual.own.named_parameters()} == set(weights)
        for name, (path, offset) in weights.items():
            residual.own.get_parameter(name).data = attrgetter(path)(theirs).detach() + offset
        ours.append(residual.double())
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = theirs(inputs[0], position_embeddings=None)
    out = out[0] if isinstance(out, tuple) else out
    outs = (theirs.next(out), ours(theirs.input_layernorm(inputs[1]))) if scheme in MOVED else (out, ours(inputs[1]))
    tolerance = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(outs[1], outs[0], **tolerance)
    direction = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    for each in outs:
        (each * direction).sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **tolerance)
    for residual, weights in zip(ours, places, strict=True):
        for name, (path, _) in weights.items():
            gradient = residual.own.get_parameter(name).grad
            torch.testing.assert_close(gradient, attrgetter(path)(theirs).grad, **tolerance)
