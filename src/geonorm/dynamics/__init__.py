"""The particle system of normalization (arXiv:2510.22026), driven by the schemes that train."""

from .rates import radial_rate, rates, speed

__all__ = ["radial_rate", "rates", "speed"]
