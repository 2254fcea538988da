"""One Transformer for all residual schemes. Names load on first use; `config` needs no torch."""

from ..lazy import load_on_use

PUBLIC = {
    "DecoderConfig": "config",
    "VisionConfig": "config",
    "PRESETS": "config",
    "preset": "config",
    "Decoder": "decoder",
    "VisionTransformer": "vision",
    "generate": "sampling",
    "parameter_groups": "init",
    "initialize": "init",
    "constrain": "init",
}

__all__ = list(PUBLIC)
__getattr__ = load_on_use(__name__, PUBLIC)
