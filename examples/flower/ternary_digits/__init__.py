"""A Flower project whose models travel as trits."""
