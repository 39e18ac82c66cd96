"""Runs the members of a cluster as processes: passes on what they say, stops them together, may start them again.

Hard rules:
- A member that has never served is not started again: what was wrong then is wrong the next time, and is said once.
- One that has served is, for ever: at once the first time, then after pauses that grow while it does not last.
- Members do not outlive this process, however it ends: each holds the other end of a pipe (`--supervised`).
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence

from penstock.cli import exits
from penstock.cli.members import Member

_STOP_SECONDS = 30.0
_LASTING_S = 60.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0


def pause_before(deaths: int) -> float:
    """Seconds before a member is started again that has died so many times without having lasted."""
    return 0.0 if deaths <= 1 else min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** (min(deaths, 20) - 2))


class Supervisor:
    """`waves`: members that stop together; the next wave is told when the last is gone."""

    def __init__(
        self,
        waves: Sequence[Sequence[Member]],
        on_ready: Callable[[], None],
        *,
        restarts: bool = False,
        bootstrap_fds: Sequence[int] = (),
    ) -> None:
        self._waves = waves
        self._members = [member for wave in waves for member in wave]
        self._on_ready = on_ready
        self._restarts = restarts
        self._bootstrap_fds = bootstrap_fds
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._codes: dict[int, int] = {}
        self._ready: set[int] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        watchers = {member: loop.create_task(self._watch(member)) for member in self._members}
        await self._stopping.wait()
        exits.talk("stopping")
        for wave in self._waves:
            await self._stop(wave, [watchers[member] for member in wave])
        codes = self._codes.values()
        return exits.OK if len(codes) == len(self._members) and not any(codes) else exits.FAILED

    async def _stop(self, wave: Sequence[Member], watchers: Sequence["asyncio.Task[None]"]) -> None:
        self._signal(wave, signal.SIGTERM)
        await asyncio.wait(watchers, timeout=_STOP_SECONDS)
        for member in self._signal(wave, signal.SIGKILL):
            exits.talk(f"{member.name} did not stop in {_STOP_SECONDS:.0f} s and is killed")
        await asyncio.gather(*watchers)

    def _signal(self, wave: Sequence[Member], number: signal.Signals) -> list[Member]:
        """To those that run; answers which."""
        running = [member for member in wave if member.node_id in self._running]
        for member in running:
            self._running[member.node_id].send_signal(number)
        return running

    async def _watch(self, member: Member) -> None:
        """One member through all its lives."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._stopping.is_set():
            began = loop.time()
            code = self._codes[member.node_id] = await self._live(member)
            if self._stopping.is_set():
                return
            how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}"
            if not self._restarts:
                exits.talk(f"{member.name} {how}; start it again: penstock broker -c {member.config_file}")
                if len(self._codes) == len(self._members):
                    self._stopping.set()
                return
            if member.node_id not in self._ready:
                exits.talk(f"{member.name} {how} before it served; see what it said above")
                self._stopping.set()
                return
            deaths = 1 if loop.time() - began > _LASTING_S else deaths + 1
            pause_s = pause_before(deaths)
            exits.talk(f"{member.name} {how} and is started again {f'in {pause_s:g} s' if pause_s else 'now'}")
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Cut short by a stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _live(self, member: Member) -> int:
        """One member from its start to its end; answers its exit code."""
        command = ["broker", "--supervised", "--config", str(member.config_file)]
        for fd in self._bootstrap_fds:
            command += ["--bootstrap-fd", str(fd)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock",
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            pass_fds=self._bootstrap_fds,
        )
        self._running[member.node_id] = process
        if self._stopping.is_set():  # while it was being started: the signal for all went past it
            process.terminate()
        assert process.stdout is not None
        while line := await process.stdout.readline():
            text = line.decode(errors="replace").rstrip("\n")
            exits.talk(text if text.startswith("{") else f"{member.name} | {text}")  # JSON stays JSON
            if " ready: " in text:
                self._note_ready(member)
        code = await process.wait()
        del self._running[member.node_id]
        return code

    def _note_ready(self, member: Member) -> None:
        known = len(self._ready)
        self._ready.add(member.node_id)
        if len(self._ready) == len(self._members) > known:
            self._on_ready()
