"""The command line: one file per group of verbs, and what they show in a terminal."""
