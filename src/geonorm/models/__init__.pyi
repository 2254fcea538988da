from .config import (
    PRESETS as PRESETS,
    DecoderConfig as DecoderConfig,
    VisionConfig as VisionConfig,
    preset as preset,
)
from .decoder import Decoder as Decoder
from .init import constrain as constrain, initialize as initialize, parameter_groups as parameter_groups
from .sampling import generate as generate
from .vision import VisionTransformer as VisionTransformer

PUBLIC: dict[str, str]
