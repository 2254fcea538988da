"""Many ranks: how they meet, and how a model lies on them."""
