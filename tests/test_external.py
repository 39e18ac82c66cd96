"""What other programs are missing is told, once, to those that skip and to those that go on without."""

import pytest

from tests.external import Unavailable, _once_or_skip, missing


def test_a_test_may_go_on_without_what_is_missing() -> None:
    tries = []

    @_once_or_skip
    def inner() -> str:
        tries.append(1)
        raise Unavailable("mvn is not installed")

    @_once_or_skip
    def outer() -> str:
        return inner() + "!"

    assert missing(outer) == missing(inner) == "mvn is not installed"
    assert missing(lambda: "here") is None
    with pytest.raises(pytest.skip.Exception, match="mvn is not installed"):
        outer()
    assert tries == [1]
