"""FedProx: a proximal term holds each client's weights to those it received.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020. A client
minimises F(w) + μ/2 · ‖w - w_received‖², so its gradient becomes ∇F(w) + μ (w - w_received). The rest is FedAvg's, or
T-FedAvg's, where w are the latent weights of the ternary layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ternfed.algorithms import fedavg, tfedavg
from ternfed.algorithms.algorithm import About, Algorithm, Local, Network, Training, Weights

ABOUT = About("FedProx")


@dataclass(frozen=True)
class Settings:
    """FedProx's settings."""

    mu: float = 0.01
    """μ: how strongly a client is held to the model it received; 0 is FedAvg."""
    ternary: bool = False
    """Ternary layers are trained and sent as by T-FedAvg, with its default settings."""

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ValueError(f"mu = {self.mu}: at least 0 is needed")


def algorithm(network: Network, training: Training, settings: Settings) -> Algorithm:
    """FedAvg or T-FedAvg whose local steps are corrected."""
    if settings.ternary:
        base = tfedavg.algorithm(network, training, tfedavg.Settings())
    else:
        base = fedavg.algorithm(network, training, fedavg.Settings())

    def correct(gradients: Weights, current: Weights, started: Local) -> Weights:
        return {
            name: gradient + settings.mu * (current[name] - started.weights[name])
            for name, gradient in gradients.items()
        }

    return replace(base, name="fedprox", training=replace(base.training, correct=correct))
