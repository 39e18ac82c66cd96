"""Whether a checker found a bug that was put in on purpose, or the bug only fell over its own feet.

A mutant whose signature no longer fits what it replaces raises `TypeError` wherever it is called. Whoever takes any
exception for a find counts it among the killed for ever, and nobody sees that the checker is no longer tried.
"""

import re
import traceback
from collections.abc import Callable

import pytest

_BROKEN = re.compile(
    r"\b(TypeError|AttributeError|NameError|UnboundLocalError|ImportError|NotImplementedError)\b *(?:[:(]|$)", re.M
)
_ASTRAY = re.compile(r"\b(KeyError|IndexError|ValueError|RecursionError)\b *(?:[:(]|$)", re.M)


def verdict(story: Callable[[], object], *, also: tuple[type[Exception], ...] = ()) -> str | None:
    """What a checker says of a story that has a bug in it; None when none says anything.

    Only `AssertionError`, with what derives from it, is a checker's word, and what `also` names. Code that goes
    astray with something else is no find: another seed may show it. A mutant that does not fit the code fails its
    test.
    """
    try:
        story()
    except Exception as error:
        told = "".join(traceback.format_exception(error))
        is_word = isinstance(error, also) or (isinstance(error, AssertionError) and not _ASTRAY.search(told))
        text = f"{type(error).__name__}: {error}"
    else:
        return None
    if _BROKEN.search(told):
        pytest.fail(f"the mutant does not fit the code that it changes:\n{told}", pytrace=False)
    return text if is_word else None
