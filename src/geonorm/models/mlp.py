"""The position-wise sub-layer: gated SiLU or GELU, GELU or ReLU squared."""

import torch.nn.functional as F
from torch import Tensor, nn

from ..schemes import Scheme, Site, slots_at
from .config import GATED, TransformerConfig
from .init import linear


class MLP(nn.Module):
    """(..., width) to the same: down(f(gate y) * up y) with f SiLU or GELU, down(gelu(up y)) or down(relu(up y)^2).
    Schemes may put modules on up, gate."""

    def __init__(self, config: TransformerConfig, scheme: Scheme, site: Site) -> None:
        super().__init__()
        self.up = linear("up", config.width, config.hidden, config.bias)
        self.gate = linear("gate", config.width, config.hidden, config.bias) if config.mlp in GATED else None
        self.formula = {"gelu_tanh": "tanh", "geglu": "tanh", "relu2": "square"}.get(config.mlp, "none")
        self.down = linear("down", config.hidden, config.width, config.bias)
        names = ("up",) if self.gate is None else ("up", "gate")
        self.slots = slots_at(scheme, dict.fromkeys(names, (config.hidden,)), config.width, site)
        self.slotted = frozenset(self.slots)

    def forward(self, y: Tensor) -> Tensor:
        up = self.slot("up", self.up(y))
        if self.gate is None:
            hidden = F.relu(up).square() if self.formula == "square" else F.gelu(up, approximate=self.formula)
        else:
            gate = self.slot("gate", self.gate(y))
            hidden = (F.gelu(gate, approximate="tanh") if self.formula == "tanh" else F.silu(gate)) * up
        return self.down(hidden)

    def slot(self, name: str, y: Tensor) -> Tensor:
        return self.slots[name](y) if name in self.slotted else y
