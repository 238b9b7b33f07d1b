"""A Flower app whose updates travel as trits."""
