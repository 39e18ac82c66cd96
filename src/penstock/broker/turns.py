"""Requests that name many things, and plans that look at many: others get their turn on the loop in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

# Either is a millisecond or two.
_MOST_NAMES = 100
_MOST_CHARACTERS = 1 << 16


async def in_turns(named: Iterable[T], name_of: Callable[[T], str]) -> AsyncIterator[T]:
    """What a request names, one by one. The client chose how many there are and how long their names."""
    names = characters = 0
    for each in named:
        names += 1
        characters += len(name_of(each))
        if names > _MOST_NAMES or characters > _MOST_CHARACTERS:
            names = characters = 0
            await asyncio.sleep(0)
        yield each


async def taking_turns(steps: Generator[None, None, T]) -> T:
    """The result of something that pauses by itself every millisecond or two."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)
