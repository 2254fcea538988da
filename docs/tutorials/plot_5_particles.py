"""
Tokens as particles
===================

In a model of attention alone tokens are particles on a sphere that attract each other. How fast they come
together depends on the scheme: arXiv:2510.22026. The simulator takes its speed from the definition that
trains.
"""

import geonorm

simulation = geonorm.simulate(["post", "pre", "peri", "geonorm"], tokens=16, dim=32, time=2000.0, seeds=1)
simulation.frame()[["scheme", "terminal_law", "terminal_exponent"]].round(2)

# %%
# ``terminal_law`` says how 1 - cos between tokens vanishes at last: exponentially in depth t, or as a power of it.
# With ``terminal_exponent`` 2 that is exp(-2 t), or 1 / t². It is stated only where the simulation has reached it.

simulation.plot("collapse")
