"""A Flower app that ends with a ternary model."""
