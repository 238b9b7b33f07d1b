"""What a client may touch on the server: the messages it was given, its replies to them, and so many bytes.

Flower checks who calls, but not whether what is called for is the caller's: its SuperLink would take a message in
another's name, hand out or delete any object, and keep whatever is pushed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ternfed.engines.flower.adapter import SUPERLINK_NODE, Delivered, Part, Reply, Session

OPEN = 4
"""Messages of one client that are remembered; a SuperNode works on one at a time."""
OBJECT = 1 << 20
"""Bytes of a message that are one object; a message has some smaller ones besides."""
OTHERS = 16


@dataclass
class _Errand:
    """A message that a client was given, and its reply as far as it has come."""

    given: Delivered
    reply: str = ""
    session: str = ""
    wanted: frozenset[str] = frozenset()
    arrived: set[str] = field(default_factory=set)
    stored: int = 0
    is_asked_for: bool = False
    """The SuperLink has been asked to take the reply, and has not answered yet."""


@dataclass
class Custody:
    """Of one client. Each question is answered by the reason why not, or by None."""

    node: int
    most: int
    """Bytes that a reply may have."""
    _errands: dict[str, _Errand] = field(default_factory=dict)

    def give(self, message: Delivered) -> None:
        """The client was given a message; the oldest is forgotten where there are many."""
        self._errands[message.message] = _Errand(message)
        while len(self._errands) > OPEN:
            del self._errands[next(iter(self._errands))]

    def refuses_pull(self, part: Part) -> str | None:
        if any(part.id in each.given.objects and part.run == each.given.run for each in self._errands.values()):
            return None
        return "asks for an object of no message of its own"

    def refuses_confirmation(self, part: Part) -> str | None:
        errand = self._errands.get(part.id)
        return None if errand and errand.given.run == part.run else "confirms a message that is not its own"

    def refuses_reply(self, reply: Reply) -> str | None:
        if reply.source != self.node or reply.destination != SUPERLINK_NODE:
            return "sends a message in another's name"
        errand = self._errands.get(reply.answers)
        if errand is None or errand.given.run != reply.run:
            return "answers a message that is not its own, or that nobody waits for any more"
        if reply.root != reply.message or (errand.reply and errand.reply != reply.message):
            return "answers a message twice"
        if len(reply.objects) > self.most // OBJECT + OTHERS:
            return f"sends a message of {len(reply.objects)} objects"
        return None

    def ask(self, reply: Reply) -> None:
        """The SuperLink is asked to take a reply."""
        errand = self._errands.get(reply.answers)
        if errand is not None:
            errand.is_asked_for = True

    def begin(self, reply: Reply, session: Session) -> None:
        """A reply was accepted; these objects of it are wanted."""
        errand = self._errands.get(reply.answers)
        if errand is not None:
            errand.is_asked_for, errand.arrived = False, set()
            errand.reply, errand.session = reply.message, session.id
            errand.wanted = session.objects & reply.objects

    def refuses_object(self, part: Part) -> str | None:
        errand = self._with_session(part)
        if errand is None:
            return "sends an object of no reply of its own"
        if errand.stored + part.size > self.most:
            return f"sends more than {self.most} bytes"
        return None

    def count(self, part: Part, times: int = 1) -> None:
        """An object is on its way in; with -1, it was not taken after all."""
        errand = self._with_session(part)
        if errand is not None:
            errand.stored += times * part.size

    def arrive(self, part: Part) -> None:
        """An object is in the SuperLink's hands."""
        errand = self._with_session(part)
        if errand is not None:
            errand.arrived.add(part.id)

    def is_coming(self, message: str) -> bool:
        """Whether the reply to a message was begun and is not whole yet: who asks Flower for it now waits for it."""
        errand = self._errands.get(message)
        return errand is not None and (errand.is_asked_for or not errand.wanted <= errand.arrived)

    def forget(self) -> list[str]:
        """Nobody waits for its replies any more: those that were begun."""
        begun = [each.reply for each in self._errands.values() if each.reply]
        self._errands.clear()
        return begun

    def _with_session(self, part: Part) -> _Errand | None:
        for each in self._errands.values():
            if part.session and part.session == each.session and part.run == each.given.run and part.id in each.wanted:
                return each
        return None
