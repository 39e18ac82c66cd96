"""Who is asking, over which connection, in which version: handed to every handler."""

from penstock.security.verdicts import ANONYMOUS, Principal


class RequestContext:
    """One request. Everything a verdict or a quota could depend on is here; handlers never see the socket."""

    __slots__ = (
        "api_key",
        "api_version",
        "client_host",
        "client_id",
        "connection_number",
        "correlation_id",
        "listener_name",
        "local_address",
        "principal",
    )

    def __init__(
        self,
        api_key: int,
        api_version: int,
        correlation_id: int = 0,
        client_id: str | None = None,
        client_host: str = "127.0.0.1",
        listener_name: str = "PLAINTEXT",
        local_address: tuple[str, int] = ("127.0.0.1", 9092),
        principal: Principal = ANONYMOUS,
        connection_number: int = 0,
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.client_host = client_host
        self.listener_name = listener_name
        self.local_address = local_address
        self.principal = principal
        self.connection_number = connection_number  # in order of acceptance; 0 where there is no connection

    def __repr__(self) -> str:
        return (
            f"RequestContext(api_key={self.api_key}, api_version={self.api_version}, client_id={self.client_id!r}, "
            f"principal={self.principal}, client_host={self.client_host!r}, listener={self.listener_name!r})"
        )
