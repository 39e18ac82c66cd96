"""The code that executors need, as one zip: whoever runs a job on a cluster installs nothing of Penstock there.

Named by what is in it, so it is made once per version and two jobs never see each other's. Compiled modules travel
along; an executor of another Python version falls back to the sources. Libraries with machine code (pyarrow, numba,
msgspec, …) cannot travel this way: they come as an environment archive, see docs/pipeline.md.
"""

import hashlib
import importlib.util
import io
import os
import py_compile
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

_ROOMS = ("client", "model", "net", "pipeline", "records", "wire")
"""Of `penstock`, what source, sink and tasks import: a room looks only down."""
_ONLY_SOURCE = frozenset({"penstock/pipeline/kernels.py"})
"""numba finds the place of its cache by where a source file is, which a compiled module does not say."""
_WHEN = (1980, 1, 1, 0, 0, 0)  # the same bytes whenever it is made


def cache_directory(name: str, content: bytes) -> Path:
    """`<cache>/penstock/<name>-<digest>`; not made."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "penstock" / f"{name}-{hashlib.sha256(content).hexdigest()[:16]}"


def cached_script(name: str, place: str, script: str) -> Path:
    """The directory in which the executable script is, at `place`; written if it is not there yet."""
    directory = cache_directory(name, script.encode())
    target = directory / place
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.{os.getpid()}")
        partial.write_text(script)
        partial.chmod(0o755)
        partial.rename(target)
    return directory


_WORKER_PYTHON = """#!/bin/sh
# Spark puts zips of its sources before the installed package: the same modules, but compiled anew in every process,
# for a second each time.
kept=
IFS=:
for place in $PYTHONPATH; do
  case $place in
    */python/lib/pyspark.zip | */python/lib/py4j-*-src.zip) ;;
    *) kept="$kept:$place" ;;
  esac
done
PYTHONPATH="${kept#:}" exec "%s" "$@"
"""


def worker_python() -> str:
    """This Python, for workers on this machine."""
    return str(python_script("python", "python") / "python")


def python_script(name: str, place: str) -> Path:
    """The directory that has this Python at `place`."""
    return cached_script(name, place, _WORKER_PYTHON % sys.executable)


def code_archive() -> str:
    """Path of the zip, made if it is not there yet."""
    sources = sorted(_sources())
    listing = "".join(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n" for name, path in sources)
    tag = importlib.util.MAGIC_NUMBER.hex()
    directory = cache_directory("code", f"{tag}\n{listing}".encode())
    target = directory / "penstock.zip"
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f"penstock.{os.getpid()}.partial"
        partial.write_bytes(_zip(sources))
        partial.rename(target)
    return str(target)


def _sources() -> Iterator[tuple[str, Path]]:
    """Names in the zip, and the files."""
    penstock = _package("penstock")
    yield "penstock/__init__.py", penstock / "__init__.py"
    for base, prefix in [(penstock / room, f"penstock/{room}") for room in _ROOMS] + [
        (_package("pyspark_penstock"), "pyspark_penstock")
    ]:
        for path in base.rglob("*.py"):
            yield f"{prefix}/{path.relative_to(base).as_posix()}", path


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"{name} is installed with this module"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _zip(sources: list[tuple[str, Path]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
        compiled = os.path.join(scratch, "module.pyc")
        for name, path in sources:
            archive.writestr(zipfile.ZipInfo(name, _WHEN), path.read_bytes(), zipfile.ZIP_DEFLATED)
            if name in _ONLY_SOURCE:
                continue
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(path), compiled, dfile=name, doraise=True, invalidation_mode=mode)
            archive.writestr(zipfile.ZipInfo(f"{name}c", _WHEN), Path(compiled).read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()
