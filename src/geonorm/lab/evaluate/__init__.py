"""What is asked of a model: held-out text, sets of questions, new text."""
