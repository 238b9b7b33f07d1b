"""The paper's rows and numbers, and how they are repeated (docs/reproduce.md)."""
