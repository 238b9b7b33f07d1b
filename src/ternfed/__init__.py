"""Federated learning over slow links: ternary networks, trits on the wire in both directions.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ternfed.data.clients import from_clients as from_clients
    from ternfed.data.sets import from_arrays as from_arrays
    from ternfed.data.sets import from_hub as from_hub
    from ternfed.data.sets import load as load
    from ternfed.engines.flower.mod import ternary_mod as ternary_mod
    from ternfed.engines.flower.strategy import TernaryStrategy as TernaryStrategy
    from ternfed.engines.simulate import federate as federate
    from ternfed.experiment.experiment import Experiment as Experiment
    from ternfed.quantize.layers import freeze as freeze
    from ternfed.quantize.layers import parameter_groups as parameter_groups
    from ternfed.quantize.layers import ternarize_ as ternarize_
    from ternfed.quantize.layers import ternary_weights as ternary_weights
    from ternfed.quantize.ternary import FTTQ as FTTQ
    from ternfed.quantize.ternary import TTQ as TTQ
    from ternfed.quantize.ternary import TWN as TWN
    from ternfed.quantize.ternary import Quantizer as Quantizer
    from ternfed.quantize.ternary import Ternary as Ternary
    from ternfed.wire import Message as Message
    from ternfed.wire import decode as decode
    from ternfed.wire import encode as encode
    from ternfed.wire import load_tern as load_tern
    from ternfed.wire import save_tern as save_tern

_ROOMS = {
    "data.clients": ("from_clients",),
    "data.sets": ("from_arrays", "from_hub", "load"),
    "experiment.experiment": ("Experiment",),
    "quantize.layers": ("freeze", "parameter_groups", "ternarize_", "ternary_weights"),
    "engines.flower.mod": ("ternary_mod",),
    "engines.flower.strategy": ("TernaryStrategy",),
    "engines.simulate": ("federate",),
    "quantize.ternary": ("FTTQ", "TTQ", "TWN", "Quantizer", "Ternary"),
    "wire": ("Message", "decode", "encode", "load_tern", "save_tern"),
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ternfed' has no attribute {name!r}")
    return getattr(import_module(f"ternfed.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
