"""The laboratory: data, training, comparison."""
