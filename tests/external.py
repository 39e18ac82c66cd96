"""Programs that other people wrote and that the tests run: kcat, and Kafka's Java clients and console tools.

What is missing is installed once: kcat by apt where that is allowed, Kafka's jars by Maven from Maven Central into
a cache outside the repository (`PENSTOCK_TEST_CACHE`, by default `~/.cache/penstock-tests`). What cannot be had is
skipped with the reason, never faked.
A test that is worth something without it asks `missing` and says what it left out.
"""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

CACHE = Path(os.environ.get("PENSTOCK_TEST_CACHE", Path.home() / ".cache" / "penstock-tests"))
JAVA_SOURCES = Path(__file__).parent / "java"
INSTALL_SECONDS = 280

MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class Unavailable(Exception):
    """Why something cannot be had on this machine."""


P = TypeVar("P")


def _once_or_skip(obtain: Callable[[], P]) -> Callable[[], P]:
    """Tries once per session; what failed once is skipped with the same reason and not tried again."""
    outcome: list[P | Unavailable] = []

    @functools.wraps(obtain)
    def get() -> P:
        if not outcome:
            try:
                outcome.append(obtain())
            except Unavailable as reason:
                outcome.append(reason)
        [found] = outcome
        if isinstance(found, Unavailable):
            pytest.skip(str(found))
        return found

    return get


def missing(get: Callable[[], object]) -> str | None:
    """Why something cannot be had here, for a test that goes on without it; None if it can."""
    try:
        get()
    except pytest.skip.Exception as reason:
        return str(reason)
    return None


@_once_or_skip
def kcat() -> str:
    """Path of kcat, installed when it is missing and may be."""
    found = shutil.which("kcat") or shutil.which("kafkacat")
    if found is None:
        _install_with_apt("kcat")
        found = shutil.which("kcat")
    if found is None:
        raise Unavailable("kcat is not installed, and apt cannot install it here (try: apt-get install kcat)")
    return found


def _install_with_apt(package: str) -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _locked("apt"):
        for command in (["install"], ["update"], ["install"]):
            arguments = ["apt-get", *command, "-y", *([package] if command == ["install"] else [])]
            try:
                done = subprocess.run(arguments, env=environment, capture_output=True, timeout=INSTALL_SECONDS)
            except subprocess.TimeoutExpired:
                return
            if command == ["install"] and done.returncode == 0:
                return


@_once_or_skip
def kafka_jars() -> Path:
    """Directory with the jars of Kafka's clients and tools, fetched from Maven Central once."""
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed: the Java tests need a JDK (17 or newer) and Maven")
    pom = JAVA_SOURCES / "pom.xml"
    target = CACHE / f"kafka-jars-{_digest(pom)}"
    with _locked("jars"):
        if not target.exists():
            _copy_dependencies(pom, target)
    return target


@_once_or_skip
def spark_connector_jars() -> list[Path]:
    """The jars of Spark's own Kafka connector, fetched from Maven Central once."""
    return sorted(obtain_spark_connector().glob("*.jar"))


def obtain_spark_connector() -> Path:
    """For those who are no tests: raises `Unavailable`."""
    if shutil.which("mvn") is None:
        raise Unavailable("mvn is not installed: Spark's Kafka connector is fetched with Maven")
    pom = JAVA_SOURCES / "spark" / "pom.xml"
    target = CACHE / f"spark-connector-{_digest(pom)}"
    with _locked("spark-connector"):
        if not target.exists():
            _copy_dependencies(pom, target)
    return target


def _copy_dependencies(pom: Path, target: Path) -> None:
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        "mvn",
        "-B",
        "-q",
        "-f",
        str(pom),
        MAVEN_COPY,
        f"-DoutputDirectory={partial}",
        "-DincludeScope=runtime",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven Central did not answer within {INSTALL_SECONDS} s") from None
    if done.returncode != 0:
        raise Unavailable(f"the jars of {pom} cannot be fetched from Maven Central: {done.stdout[-600:]}")
    partial.rename(target)


@_once_or_skip
def java_classpath() -> str:
    """Class path with Kafka's jars and the test driver (`tests/java/penstock`), compiled once per content."""
    jars = kafka_jars()
    sources = sorted((JAVA_SOURCES / "penstock").glob("*.java"))
    classes = CACHE / f"driver-{_digest(JAVA_SOURCES / 'pom.xml', *sources)}"
    with _locked("driver"):
        if not classes.exists():
            partial = classes.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = ["javac", "-d", str(partial), "-cp", f"{jars}/*", *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            assert done.returncode == 0, done.stderr
            partial.rename(classes)
    return f"{classes}:{jars}/*"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:16]


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Two test runs on one machine must not install the same thing at once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
