"""Exit codes, and how an error becomes one. Scripts rely on the numbers: they never change their meaning."""

import click

OK = 0
FAILED = 1
"""The broker refused, or what was asked for could not be done."""
USAGE = 2
"""The command line or a configuration file is wrong."""
UNREACHABLE = 3
"""No broker could be reached, or it did not answer in time."""
INTERRUPTED = 130
"""Ctrl-C."""

MEANINGS = {
    OK: "done",
    FAILED: "refused or failed: the broker said no, a file is corrupt, a record was not delivered",
    USAGE: "usage: the command line or the configuration is wrong",
    UNREACHABLE: "no broker could be reached, or it did not answer in time",
    INTERRUPTED: "interrupted with Ctrl-C; `up`, `broker` and `cluster up`, which it stops cleanly, end with 0",
}


class Failure(click.ClickException):
    """An expected failure of a command: one sentence, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = exit_code


def talk(message: str) -> None:
    """For people; data goes to stdout."""
    click.echo(message, err=True)


def report(error: Exception) -> int:
    """Tells the user about an expected error; returns the exit code. Anything unexpected is raised again."""
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "penstock"
        return _say(error.format_message(), f"`{where} --help` shows how it is used", USAGE)
    if isinstance(error, Failure):
        return _say(error.message, error.hint, error.code)
    if isinstance(error, click.ClickException):
        return _say(error.format_message(), "", error.exit_code)
    return _report_client_error(error)


def _report_client_error(error: Exception) -> int:
    from penstock.client.errors import ClientError, ConnectionFailed, RequestTimedOut, UsageError

    if not isinstance(error, ClientError):
        raise error
    if isinstance(error, UsageError):
        return _say(str(error), error.hint, USAGE)
    unreachable = isinstance(error, ConnectionFailed | RequestTimedOut)
    hint = error.hint
    if isinstance(error, ConnectionFailed) and hint == ConnectionFailed.hint:
        hint = "start a broker with `penstock up`, or name one with --bootstrap host:port"
    if hint == RequestTimedOut.hint:  # a command has no time limit to raise
        hint = "the broker hangs, or is overloaded: look at its log, or name another one with --bootstrap host:port"
    return _say(str(error), hint, UNREACHABLE if unreachable else FAILED)


def _say(message: str, hint: str, exit_code: int) -> int:
    talk(f"error: {message}")
    if hint:
        talk(f"hint: {hint}")
    return exit_code
