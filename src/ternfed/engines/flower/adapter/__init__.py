"""Everything of Flower that is not its public interface, in one place, under our own names.

Flower promises `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. All else may change with any release, so it is
imported in this folder and nowhere else; `tests/engines/flower/test_adapter_contract.py` names what we rely on.

    version.py     which versions of Flower are tested, and whether one of them is installed
    programs.py    Flower's settings, the command lines of its programs, the paths and headers of its HTTP calls
    tasks.py       tasks taken from a SuperLink or SuperNode, and answered
    superlink.py   keys and the run registered at a SuperLink, and its grid
    supernode.py   the program of the child process that is a SuperNode; it says how it ended

Nothing here imports Flower before it is used, and nothing imports PyTorch.
"""

from ternfed.engines.flower.adapter.programs import (
    FLEET,
    MOST_AHEAD,
    MOST_BEHIND,
    OFFLINE,
    PUBLIC_KEY_HEADER,
    End,
    Ended,
    deactivation,
    how_it_ended,
    program,
    quiet,
    set_up,
    superlink_command,
    supernode_command,
)
from ternfed.engines.flower.adapter.superlink import open_control, open_grid, register, start_run
from ternfed.engines.flower.adapter.tasks import (
    CLIENT_APP,
    SERVER_APP,
    CallFailed,
    Unreachable,
    heartbeats,
    is_from_flower,
    load_ahead,
    open_queue,
    open_task,
    read_task,
    send_reply,
    take,
)
from ternfed.engines.flower.adapter.version import need_flower

__all__ = [
    "CLIENT_APP",
    "FLEET",
    "MOST_AHEAD",
    "MOST_BEHIND",
    "OFFLINE",
    "PUBLIC_KEY_HEADER",
    "SERVER_APP",
    "CallFailed",
    "End",
    "Ended",
    "Unreachable",
    "deactivation",
    "heartbeats",
    "how_it_ended",
    "is_from_flower",
    "load_ahead",
    "need_flower",
    "open_control",
    "open_grid",
    "open_queue",
    "open_task",
    "program",
    "quiet",
    "read_task",
    "register",
    "send_reply",
    "set_up",
    "start_run",
    "superlink_command",
    "supernode_command",
    "take",
]
