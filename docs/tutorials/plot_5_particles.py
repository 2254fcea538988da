"""
Tokens as particles
===================

In a model of attention alone tokens are particles on a sphere that attract each other. How fast they come
together depends on the scheme: arXiv:2510.22026. The simulator takes its speed from the definition that
trains.
"""

import geonorm

simulation = geonorm.simulate(["post", "pre", "peri", "geonorm"], tokens=16, dim=32, time=2000.0, seeds=1)
simulation.frame()[["scheme", "terminal_law", "terminal_exponent"]]

# %%
# ``terminal_law`` says how the last distance between tokens vanishes: exponentially in depth, or as a power of it. It
# is stated only where the simulation has reached it.

simulation.plot("collapse")
