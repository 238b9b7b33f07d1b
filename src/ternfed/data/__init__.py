"""Data sets, how they are divided among clients, and a picture of that division."""
