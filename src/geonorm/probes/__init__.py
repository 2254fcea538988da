"""The geometry of hidden states: measures of a stream before and after a site, and of norms, on any model."""

from .accumulate import NormMeasure, SiteMeasure
from .measures import SiteMoments, step_measures

__all__ = ["NormMeasure", "SiteMeasure", "SiteMoments", "step_measures"]
