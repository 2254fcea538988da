"""Where the residual sites of a model are."""
