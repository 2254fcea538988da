from . import dynamics as dynamics
from . import errors as errors
from . import hf as hf
from . import lab as lab
from . import nn as nn
from . import norms as norms
from . import ops as ops
from . import probes as probes
from . import report as report
from . import residual as residual
from . import schemes as schemes
from . import sphere as sphere
from .dynamics.simulate import simulate as simulate
from .errors import GeonormError as GeonormError
from .lab.compare.study import compare as compare
from .lab.ladder.study import ladder as ladder
from .lab.studies.probe import probe as probe
from .nn.config import DecoderConfig as DecoderConfig
from .nn.decoder import Decoder as Decoder
from .nn.groups import parameter_groups as parameter_groups
from .ops import geodesic_update as geodesic_update
from .residual import Residual as Residual
from .schemes import Placement as Placement
from .schemes import Scheme as Scheme
from .schemes import Site as Site
from .schemes import names as names
from .schemes import parse as parse
from .sites import anatomy as anatomy

__version__: str
PUBLIC: dict[str, str]
MODULES: dict[str, str]
EXTRAS: dict[str, str]
