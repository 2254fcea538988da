from . import (
    dynamics as dynamics,
    errors as errors,
    hf as hf,
    lab as lab,
    measure as measure,
    models as models,
    norms as norms,
    ops as ops,
    report as report,
    residual as residual,
    schemes as schemes,
    sphere as sphere,
)
from .dynamics.simulate import simulate as simulate
from .equality import same as same
from .errors import GeonormError as GeonormError
from .lab.compare.compare import compare as compare
from .lab.compare.ladder import ladder as ladder
from .lab.load import load as load
from .lab.probe import probe as probe
from .measure import anatomy as anatomy
from .models.config import DecoderConfig as DecoderConfig, preset as preset
from .models.decoder import Decoder as Decoder
from .models.init import constrain as constrain, initialize as initialize, parameter_groups as parameter_groups
from .ops import geodesic_update as geodesic_update
from .residual import Residual as Residual
from .schemes import Placement as Placement, Scheme as Scheme, Site as Site, names as names, parse as parse

__version__: str
PUBLIC: dict[str, str]
MODULES: dict[str, str]
EXTRAS: dict[str, str]
