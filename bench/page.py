"""Runs benchmarks of this directory and writes what they print into a page, with command, day and machine.

    python -m bench.page docs/performance.md broker cluster cores scale service_levels
    python -m bench.page docs/pipeline.md "pipeline --megabytes 100"

Each has its place between two marker lines; without them it goes to the end of the page. Exit 1: one of them failed,
or broke what it promises (then what it printed is in the page all the same).
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.bench.results.machine import machine_facts, own_versions
from penstock.bench.results.table import replace_between


def run(words: Sequence[str]) -> tuple[int, str]:
    """Exit code and what it printed; progress goes on to stderr."""
    done = subprocess.run([sys.executable, "-m", *words], stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout


def block(words: Sequence[str], printed: str) -> str:
    facts = own_versions() | machine_facts(Path(tempfile.gettempdir()))
    told = ", ".join(f"{name} {value}" for name, value in facts.items())
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"`python -m {shlex.join(words)}`, {day}; {told}:\n\n```text\n{printed.rstrip()}\n```\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("benchmarks", nargs="+", metavar="BENCHMARK", help="its name, with options if any, quoted")
    given = parser.parse_args()
    worst = 0
    for benchmark in given.benchmarks:
        name, *options = shlex.split(benchmark)
        words = [f"bench.{name}", *options]
        code, printed = run(words)
        if not printed:
            print(f"{words[0]} printed nothing (exit {code}); the page keeps what it had", file=sys.stderr)
        else:
            begin = f"<!-- bench.{name}: begin (written by `python -m bench.page`, do not edit) -->"
            text = block(words, printed)
            given.page.write_text(replace_between(given.page.read_text(), begin, f"<!-- bench.{name}: end -->", text))
        worst = max(worst, code)
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
