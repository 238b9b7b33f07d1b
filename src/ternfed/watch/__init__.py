"""Runs while they run: a live page, and numbers for Prometheus, both read from run folders."""
