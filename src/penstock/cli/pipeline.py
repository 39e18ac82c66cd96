"""`penstock pipeline <job>`: the jobs that run on Spark.

A job's command is `command` in `penstock/cli/pipeline_<job>.py`, found by the file's name and imported when it is
called or listed. Such a module imports neither PySpark nor pyarrow at its top: help must come at once.
"""

import functools
import pkgutil
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

import penstock.cli
from penstock.cli.exits import FAILED, OK, Failure, talk
from penstock.cli.options import bootstrap_option_named, parse_assignments
from penstock.cli.output import print_facts, print_json, print_rows

if TYPE_CHECKING:
    from penstock.pipeline.job import JobSummary

_PREFIX = "pipeline_"


class JobGroup(click.Group):
    """Its commands are the modules `pipeline_*` beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (module.name for module in pkgutil.iter_modules(penstock.cli.__path__))
        return sorted(name.removeprefix(_PREFIX).replace("_", "-") for name in names if name.startswith(_PREFIX))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"penstock.cli.{_PREFIX}{cmd_name.replace('-', '_')}").command
        return command


@click.command(cls=JobGroup)
def pipeline() -> None:
    """Move and analyse topics in bulk, on Spark.

    Needs `pip install penstock[pipeline]`. A job that was interrupted goes on when it is run again.
    """


_COMMON: list[Callable[[Any], Any]] = [
    bootstrap_option_named("--bootstrap", "--bootstrap-server", "-b"),
    click.option(
        "--property", "properties", multiple=True, metavar="NAME=VALUE", help="A client setting; may be repeated."
    ),
    click.option(
        "--master",
        metavar="URL",
        envvar="PENSTOCK_SPARK_MASTER",
        show_envvar=True,
        help="Where Spark runs: local[N], spark://…, k8s://…, yarn.  [default: local[*]]",
    ),
    click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
    click.option(
        "--archives",
        metavar="FILE",
        help="An environment with the libraries, for executors on a cluster (venv-pack, conda-pack).",
    ),
    click.option("--dry-run", is_flag=True, help="Only show what would be done."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
    click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
]


def job_command() -> Callable[[Callable[..., "JobSummary"]], click.Command]:
    """Makes a command of `function(context, **own options) -> JobSummary`, with the options of every job.

    Goes above the job's own options and arguments:

        @job_command()
        @click.argument("topic")
        def command(context: JobContext, topic: str) -> JobSummary: ...
    """

    def make(function: Callable[..., "JobSummary"]) -> click.Command:
        name = function.__module__.rpartition(f".{_PREFIX}")[2].replace("_", "-")

        @functools.wraps(function)
        def run(**options: Any) -> int:
            return _run(function, options)

        wrapped: Any = run
        for option in reversed(_COMMON):
            wrapped = option(wrapped)
        command: click.Command = click.command(name)(_own_options_first(wrapped))
        return command

    return make


def _own_options_first(function: Any) -> Any:
    """Help shows what a job is about before what all jobs have."""
    parameters = function.__click_params__
    # click lists them in reverse order of appearance, and the common ones were added last.
    common = len(_COMMON)
    function.__click_params__ = parameters[-common:] + parameters[:-common]
    return function


def _run(function: Callable[..., "JobSummary"], options: dict[str, Any]) -> int:
    from penstock.cli.progress import ProgressLine
    from penstock.pipeline.errors import PipelineError
    from penstock.pipeline.explain import explained
    from penstock.pipeline.job import JobContext

    as_json, quiet = options.pop("as_json"), options.pop("quiet")
    properties = parse_assignments(options.pop("properties"), "a client setting")
    conf = parse_assignments(options.pop("conf"), "a setting of Spark")
    given = {name: options.pop(name) for name in ("bootstrap", "master", "archives", "dry_run")}
    try:
        with (
            ProgressLine(quiet=quiet) as progress,
            JobContext(properties=properties, conf=conf, progress=progress, **given) as context,
            explained(),
        ):
            summary = function(context, **options)
    except PipelineError as error:
        raise Failure(error.message, hint=error.hint, exit_code=error.exit_code) from error
    except KeyboardInterrupt:
        talk("run it again to go on where it was")
        raise
    print_summary(summary, as_json=as_json)
    return OK if summary.passed else FAILED


def print_summary(summary: "JobSummary", *, as_json: bool) -> None:
    if as_json:
        print_json(summary.to_json())
        return
    click.echo(summary.title)
    print_facts(summary.facts, "table")
    if summary.rows:
        click.echo()
        print_rows(summary.rows, summary.columns or list(summary.rows[0]), "table")
    for note in summary.notes:
        talk(note)


def stop_on_signal() -> threading.Event:
    """For jobs without an end: the first Ctrl-C or SIGTERM sets the event, and the job ends at its next good point;
    the second interrupts it."""
    stopped = threading.Event()

    def stop(*_: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        talk("stopping when this round is done; once more to stop at once")
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    talk("running until Ctrl-C")
    return stopped
