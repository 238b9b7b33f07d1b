"""A grid without a network: messages go straight to ClientApps of this process, one after the other.

What a client keeps in its context stays there between messages, as it does on a SuperNode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def in_process_grid(apps: Mapping[int, Any], run_config: Mapping[str, Any] | None = None) -> Any:
    """A grid whose nodes, by id, run these ClientApps; node n of N has partition n."""
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    contexts = {
        node: Context(
            run_id=1,
            node_id=node,
            node_config={"partition-id": place, "num-partitions": len(apps)},
            state=RecordDict(),
            run_config=dict(run_config or {}),
        )
        for place, node in enumerate(apps)
    }
    return _grid()(dict(apps), contexts)


def _grid() -> Callable[..., Any]:
    from flwr.app import Error, Message, RecordDict
    from flwr.serverapp import Grid

    class InProcess(Grid):
        """The nodes are `apps`; `contexts` is what each of them has."""

        def __init__(self, apps: dict[int, Any], contexts: dict[int, Any]) -> None:
            self.apps, self.contexts = apps, contexts

        def get_node_ids(self) -> Iterable[int]:
            return list(self.apps)

        def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Iterable[Any]:
            return [self._answer(message) for message in messages]

        def _answer(self, message: Any) -> Any:
            node = message.metadata.dst_node_id
            message.content = RecordDict(dict(message.content))  # a strategy may give all messages one content
            try:
                return self.apps[node](message, self.contexts[node])
            except Exception as error:  # Flower answers for an app that raises
                return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

        def set_run(self, run: Any) -> None:
            raise NotImplementedError

        @property
        def run(self) -> Any:
            raise NotImplementedError

        def create_message(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

        def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
            raise NotImplementedError

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
            raise NotImplementedError

    return InProcess
