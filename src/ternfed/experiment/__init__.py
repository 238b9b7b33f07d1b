"""One experiment as one typed value and as TOML (docs/experiments.md)."""
