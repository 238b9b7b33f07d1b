"""Federated learning over slow links: ternary networks, trits on the wire in both directions."""
