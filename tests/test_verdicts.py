"""What counts as a find of a checker, and what only shows that a mutant does not fit the code."""

import pytest

from penstock.sim.ghost_log import Violation
from penstock.sim.loop import Deadlock
from penstock.sim.process import Process
from penstock.sim.world import World, WorldFailed
from tests.verdicts import verdict


def fails(error: BaseException, cause: BaseException | None = None) -> None:
    raise error from cause


def test_the_word_of_a_checker_counts() -> None:
    assert verdict(lambda: fails(Violation("P1: behind"))) == "Violation: P1: behind"
    assert verdict(lambda: fails(WorldFailed("duplicate: 1"))) == "WorldFailed: duplicate: 1"
    assert verdict(lambda: fails(Deadlock("stuck")), also=(Deadlock,)) == "Deadlock: stuck"
    assert verdict(lambda: None) is None


@pytest.mark.parametrize("error", [KeyError("x"), OSError("x"), Deadlock("stuck"), IndexError()])
def test_code_that_goes_astray_is_no_find(error: Exception) -> None:
    assert verdict(lambda: fails(error)) is None
    assert isinstance(error, (OSError, Deadlock)) or verdict(lambda: fails(AssertionError("seed 1"), error)) is None


@pytest.mark.parametrize("error", [TypeError("takes 3 arguments"), AttributeError("x"), NameError("x")])
def test_a_mutant_that_does_not_fit_fails_its_test(error: Exception) -> None:
    with pytest.raises(pytest.fail.Exception, match="does not fit"):
        verdict(lambda: fails(error))
    with pytest.raises(pytest.fail.Exception, match="does not fit"):
        verdict(lambda: fails(AssertionError("seed 1"), error))


def test_what_a_program_in_the_world_raised_comes_with_the_verdict() -> None:
    """Also where the world was found wanting for something else first."""

    def drifted() -> None:
        fails(TypeError("takes 3 arguments"))

    async def story(world: World, process: Process, complaint: str) -> None:
        async def call_later() -> None:
            world.loop.call_soon(drifted)

        await process.call(call_later())
        await process.call(call_later())
        if complaint:
            raise WorldFailed(complaint)

    for complaint in ("", "liveness: nobody moves"):
        world = World(seed=1)
        work = story(world, world.add_client("c"), complaint)
        with pytest.raises(pytest.fail.Exception, match="takes 3 arguments"):
            verdict(lambda world=world, work=work: world.run(work))  # type: ignore[misc]
