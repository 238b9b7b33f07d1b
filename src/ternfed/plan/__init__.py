"""What a federation will cost, before anybody trains: real messages of a model with made numbers (docs/plan.md)."""
