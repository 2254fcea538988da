"""Many ranks: how a model is spread over them, saved, watched and planned."""
