"""The command as a process of its own: start, stop, pipes, Ctrl-C, and what it imports."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import __version__
from penstock.testing import Broker

COMMAND = [sys.executable, "-m", "penstock"]


def run(*arguments: str, stdin: str = "", timeout: float = 30) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def up(tmp_path: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [
        *COMMAND,
        "up",
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--data",
        str(tmp_path / "data"),
        "--node-id",
        "7",
    ]
    process = subprocess.Popen([*command, "--set", "flush.mode=os"], stderr=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()


def address_of(process: "subprocess.Popen[str]") -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if match := re.search(r"ready.*?(127\.0\.0\.1:\d+)", line):
            return match[1]
    raise AssertionError("the broker did not come up")


def test_up_serves_and_stops_on_sigterm(up: "subprocess.Popen[str]") -> None:
    address = address_of(up)
    described = json.loads(run("cluster", "describe", "-b", address, "-o", "json").stdout)
    assert [b["id"] for b in described["brokers"]] == [7]
    up.send_signal(signal.SIGTERM)
    assert up.wait(20) == 0


@pytest.mark.parametrize("command", ["broker", "up"])
def test_a_member_that_knows_no_voters_says_that_it_is_alone(tmp_path: Path, command: str) -> None:
    config = tmp_path / "member.toml"
    config.write_text(f'"node.id" = 7\nlisteners = "PLAINTEXT://127.0.0.1:0"\n"log.dirs" = "{tmp_path / "data"}"\n')
    process = subprocess.Popen([*COMMAND, command, "--config", str(config)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if " ready: " in line:
            break
    process.terminate()
    assert process.wait(20) == 0
    process.stderr.close()
    assert ("node 7 is a cluster of its own" in said) == (command == "broker")


def test_up_refuses_what_it_does_not_understand(tmp_path: Path) -> None:
    for arguments in (
        ["--set", "no.such.setting=1"],
        ["--set", "nonsense"],
        ["--port", "99999"],
        ["--config", str(tmp_path / "missing.toml")],
    ):
        result = run("up", "--data", str(tmp_path / "data"), *arguments)
        assert result.returncode == 2, (arguments, result.stderr)
        assert result.stderr.startswith("error: ")
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"this is not = = toml", " is not TOML: "),
        (b"\xff\xfe", " is not TOML: "),
        (b"no.such.setting = 1", ": setting no.such.setting"),
        (None, "No such file"),
    ],
)
def test_what_is_wrong_with_a_file_names_the_file(tmp_path: Path, content: bytes | None, why: str) -> None:
    config = tmp_path / "bad.toml"
    if content is not None:
        config.write_bytes(content)
    result = run("broker", "--config", str(config))
    assert result.returncode == 2
    assert str(config) in result.stderr
    assert why in result.stderr
    assert "Traceback" not in result.stderr


def test_up_imports_neither_rich_nor_the_client() -> None:
    code = (
        "import sys, penstock.cli.main, penstock.cli.up, penstock.node.run;"
        "print([m for m in sys.modules if m.split('.')[0] == 'rich' or m.startswith('penstock.client')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_help_and_version_need_nothing() -> None:
    assert run("version").stdout.startswith(f"penstock {__version__}")
    assert json.loads(run("version", "-o", "json").stdout)["penstock"] == __version__
    listed = run("--help")
    assert listed.returncode == 0
    for command in ("up", "topic", "produce", "consume", "group", "config", "log", "cluster", "bench"):
        assert f"\n  {command} " in listed.stdout


def test_a_reader_that_has_seen_enough_is_no_error(broker: Broker) -> None:
    lines = "".join(f"{n} {'x' * 100}\n" for n in range(5000))
    assert run("topic", "create", "piped", "-b", broker.bootstrap, "--if-not-exists").returncode == 0
    assert run("produce", "piped", "-b", broker.bootstrap, stdin=lines).returncode == 0
    consume = subprocess.Popen(
        [*COMMAND, "consume", "piped", "-b", broker.bootstrap, "-o", "raw"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert consume.stdout is not None
    assert consume.stderr is not None
    consume.stdout.readline()
    consume.stdout.close()
    assert consume.wait(20) == 0
    assert b"Traceback" not in consume.stderr.read()
    consume.stderr.close()


def test_ctrl_c_is_clean(broker: Broker) -> None:
    run("topic", "create", "watched", "-b", broker.bootstrap, "--if-not-exists")
    run("produce", "watched", "-b", broker.bootstrap, stdin="hello\n")
    consume = subprocess.Popen(
        [*COMMAND, "consume", "watched", "-b", broker.bootstrap, "--follow", "--from", "beginning", "-o", "raw"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # A test run in the background of a shell hands an ignored SIGINT down to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert consume.stdout is not None
    assert consume.stdout.readline() == b"hello\n"
    consume.send_signal(signal.SIGINT)
    _, talk = consume.communicate(timeout=20)
    assert consume.returncode == 130
    assert talk.strip() == b"interrupted"


def test_bench_measures(broker: Broker) -> None:
    produced = run("bench", "produce", "-b", broker.bootstrap, "--records", "2000", "-o", "json")
    assert produced.returncode == 0, produced.stderr
    facts = json.loads(produced.stdout)
    assert facts["records"] == 2000
    assert facts["latency_p99_ms"] >= facts["latency_p50_ms"] > 0
    consumed = run("bench", "consume", "-b", broker.bootstrap)
    assert "records per s" in consumed.stdout
