"""The command line: verbs, their options, pages about schemes."""
