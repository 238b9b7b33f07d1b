"""The same algorithms over a real network: Flower's SuperLink and SuperNodes carry the bytes (docs/deploy.md)."""
