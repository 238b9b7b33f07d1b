"""Runs logged to somebody else's tracker, one file each: TensorBoard, MLflow, Weights & Biases, Trackio.

Only the process that writes the run logs: in a federation the server, so clients need no account. Nothing leaves the
machine unless the tracker's own environment variable says where to (docs/watch.md).
"""
