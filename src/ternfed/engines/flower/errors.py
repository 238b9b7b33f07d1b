"""What can go wrong outside the wire."""


class NetworkError(RuntimeError):
    """A federation that cannot start or go on; one sentence that says why and what to do."""


class Refused(NetworkError):
    """The server does not know this client, or the client does not trust this server."""


class InUse(Refused):
    """Another process is connected with this client's key."""
