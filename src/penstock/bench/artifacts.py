"""What is compared with, fetched once: Kafka's jars by Maven, nats-server by Go's own installer.

Everything lands in a cache outside the repository (`PENSTOCK_BENCH_CACHE`, by default `~/.cache/penstock-bench`) and
is the newest release of the day it was fetched; remove the cache to fetch anew. What cannot be had raises
`Unavailable` with the reason, which ends up in the report.
"""

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FETCH_SECONDS = 900
_MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_NATS_MODULE = "github.com/nats-io/nats-server/v2@latest"
# A version range makes Maven ask for the newest release of the server itself: clients are at times released earlier.
_POM = """<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock.bench</groupId><artifactId>kafka-of-the-comparison</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>[4.3.1,5)</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>[4.3.1,5)</version>
      <exclusions>
        <!-- Connect's server and its HTTP stack: no tool used here needs them. -->
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-json</artifactId></exclusion>
        <exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-api</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

Say = Callable[[str], None]


class Unavailable(Exception):
    """Why something cannot be had on this machine, and what would help."""


def cache_dir() -> Path:
    return Path(os.environ.get("PENSTOCK_BENCH_CACHE", Path.home() / ".cache" / "penstock-bench"))


class Kafka:
    """Jars of Kafka's server and tools."""

    def __init__(self, jars: Path) -> None:
        self.class_path = f"{jars}/*"
        [core] = jars.glob("kafka_2.13-*.jar")
        self.version = core.stem.removeprefix("kafka_2.13-")


def obtain_kafka(say: Say) -> Kafka:
    _need("java", "Kafka needs a Java runtime, 17 or newer")
    target = cache_dir() / "kafka-jars"
    with _locked("kafka"):
        if not target.exists():
            _need("mvn", "Kafka is fetched by Apache Maven")
            say("fetching Apache Kafka from Maven Central, once …")
            _fetch_jars(target)
    return Kafka(target)


def _fetch_jars(target: Path) -> None:
    pom = cache_dir() / "kafka-pom.xml"
    pom.write_text(_POM)
    partial = _partial(target)
    command = ["mvn", "-B", "-q", "-f", str(pom), _MAVEN_COPY]
    command += [f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
    _run(command, "Kafka's jars cannot be fetched from Maven Central")
    partial.rename(target)


class Nats:
    """The nats-server program."""

    def __init__(self, program: Path) -> None:
        self.program = program
        told = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v([\d.]+)", told)
        self.version = found[1] if found else told.strip()


def obtain_nats(say: Say) -> Nats:
    target = cache_dir() / "nats-server"
    with _locked("nats"):
        if not target.exists():
            _need("go", "nats-server is built by Go")
            say("building nats-server through the Go proxy, once …")
            partial = _partial(cache_dir() / "nats-build")
            environment = {**os.environ, "GOBIN": str(partial)}
            _run(["go", "install", _NATS_MODULE], "nats-server cannot be built", environment)
            (partial / "nats-server").rename(target)
            shutil.rmtree(partial)
    return Nats(target)


def librdkafka_version() -> str:
    try:
        import confluent_kafka
    except ImportError:
        raise Unavailable("confluent-kafka is not installed (pip install confluent-kafka)") from None
    return f"{confluent_kafka.libversion()[0]} (confluent-kafka {confluent_kafka.version()})"


def _need(program: str, why: str) -> None:
    if shutil.which(program) is None:
        raise Unavailable(f"{program} is not installed: {why}")


def _partial(target: Path) -> Path:
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    return partial


def _run(command: list[str], what: str, environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what}: no end after {FETCH_SECONDS} s") from None
    if done.returncode != 0:
        tail = " ".join((done.stdout + done.stderr).split())[-300:]
        raise Unavailable(f"{what}: {tail or f'{command[0]} ended with {done.returncode}'}")


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """Two runs on one machine must not fetch the same thing at once."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
