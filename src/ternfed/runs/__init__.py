"""The run folder: records, environment, checkpoints (docs/experiments.md)."""
