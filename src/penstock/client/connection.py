"""One connection to one broker, failing with the client's own errors. See `net.requester` for its rules."""

from penstock.client.errors import ConnectionFailed, RequestTimedOut, Unsupported
from penstock.net.requester import Requester, RequestFailed, connect


class Connection(Requester):
    """Use `open_connection` to make one. `versions` is what the broker serves, once negotiated."""

    def error_failed(self, message: str, hint: str | None = None) -> Exception:
        return ConnectionFailed(message, hint=hint)

    def error_late(self, message: str) -> Exception:
        return RequestTimedOut(message)

    def error_not_served(self, code: int, message: str) -> Exception:
        return Unsupported(code, message)


async def open_connection(host: str, port: int, *, client_id: str, timeout_ms: float) -> Connection:
    """Connects; raises `ConnectionFailed`. Versions are not negotiated yet."""
    try:
        return await connect(Connection, host, port, client_id=client_id, timeout_ms=timeout_ms)
    except RequestFailed as error:
        raise ConnectionFailed(str(error)) from None
