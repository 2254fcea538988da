"""Training: the loop, its optimizers, and what is measured meanwhile."""
