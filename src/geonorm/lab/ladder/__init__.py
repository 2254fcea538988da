"""Ladders: schemes over sizes and token budgets."""
