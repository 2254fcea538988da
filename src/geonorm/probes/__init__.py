"""The geometry of hidden states: measures of a stream before and after a site."""

from .measures import SiteMoments, step_measures

__all__ = ["SiteMoments", "step_measures"]
