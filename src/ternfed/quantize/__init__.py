"""Ternary weights: the quantizers as pure tensor functions, fused for many layers, and in a user's own module."""
