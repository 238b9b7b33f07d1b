"""A Flower app that trains and sends the last layer alone."""
