"""Benchmarks, each a module with `run` and `table`: ratios measured side by side in one run."""
