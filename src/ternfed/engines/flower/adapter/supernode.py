"""The program of the child process that is a SuperNode: `python -m … REPORT OPTIONS-OF-flower-supernode`.

It calls Flower's own function. How that function ends says what happened, without a look into its log:

    it returns              it was connected and the connection ended; Flower would leave the process there, idle
    SystemExit, code 1-3    it was stopped; when nobody did that, it stopped itself, because the SuperLink answered 401
    SystemExit, code 305    the connection could not be made
    SystemExit, other       something that another try does not change, such as another version of Flower on the server
    any other exception     it never came as far as connecting
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from ternfed.engines.flower.adapter.programs import End, Ended


def main(arguments: list[str]) -> None:
    report, options = Path(arguments[0]), arguments[1:]
    report.unlink(missing_ok=True)
    ended = run(options)
    report.write_text(json.dumps(ended._asdict()), encoding="utf-8")
    sys.stdout.flush()
    os._exit(ended.end is End.FAILED)  # threads of Flower's would keep the process


def run(options: list[str]) -> Ended:
    """Be a SuperNode until it ends."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    stay_at_the_server()
    sys.argv = ["flower-supernode", *options]
    try:
        flower_supernode()
    except SystemExit as error:
        return read_exit(error)
    except Exception as error:
        traceback.print_exc()
        return Ended(End.FAILED, f"{type(error).__name__}: {error}")
    return Ended(End.LOST, "")


def stay_at_the_server() -> None:
    """Flower's client follows redirections, with signature and upload, to wherever the answer says. Ours does not."""
    from flwr.supercore.protobuf.client import ProtobufClient

    before = ProtobufClient.__init__

    def after(self: Any, *arguments: Any, **options: Any) -> None:
        before(self, *arguments, **options)
        self._client.follow_redirects = False

    ProtobufClient.__init__ = after  # type: ignore[method-assign]


def read_exit(error: SystemExit) -> Ended:
    """What Flower means by an exit. The process only gets 0 or 1; its own code is in the function that raised it."""
    from flwr.supercore.exit import ExitCode

    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "flwr_exit"]
    if not frames:  # its options, for example
        return Ended(End.FAILED, f"it ended with status {error.code}")
    code, message = (frames[-1].f_locals.get(name) for name in ("code", "message"))
    if code in (ExitCode.GRACEFUL_EXIT_SIGINT, ExitCode.GRACEFUL_EXIT_SIGQUIT, ExitCode.GRACEFUL_EXIT_SIGTERM):
        return Ended(End.TURNED_AWAY, "")
    if code == ExitCode.SUPERNODE_CONNECTION_ERROR:
        return Ended(End.LOST, "")
    return Ended(End.FAILED, f"{' '.join(str(message or '').split())} (exit code {code} of Flower)")


if __name__ == "__main__":
    main(sys.argv[1:])
