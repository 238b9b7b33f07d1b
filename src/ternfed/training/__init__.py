"""One client's local training: the plain reference, the fast ways held to it, and the choice between them."""
