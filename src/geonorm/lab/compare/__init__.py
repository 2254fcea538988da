"""Comparisons: which runs there are, and where they are executed."""
