"""What commands say of brokers that do not answer as they should."""

import socket
import threading
from collections.abc import Iterator

import pytest

from penstock.cli.exits import UNREACHABLE
from tests.cli.conftest import Invoke


@pytest.fixture
def hangs_up() -> Iterator[str]:
    """The address of somebody who lets everybody in and nobody stay."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_broker_that_turns_clients_away_is_not_told_to_be_started(penstock: Invoke, hangs_up: str) -> None:
    result = penstock("topic", "list", bootstrap=f"127.0.0.1:1,{hangs_up},localhost:1")
    assert result.exit_code == UNREACHABLE
    assert f"{hangs_up} accepted the connection and closed it" in result.stderr
    assert "hint: a broker turns clients away when it has lost the majority of its controllers" in result.stderr
