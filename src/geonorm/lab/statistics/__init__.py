"""Statistics of runs: pure functions of their records."""
