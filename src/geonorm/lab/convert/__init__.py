"""Conversion of trained Pre-Norm models to other schemes: `geonorm convert`."""
