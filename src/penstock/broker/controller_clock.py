"""What the active controller does by the clock: ends sessions, gives leaderships back, spreads load, grows topics.

Runs only while this node is the active controller; what it knows of brokers' sessions begins anew with every term.
Every round is a handful of comparisons unless there is something to decide.
Hard rule: a node that was itself asleep (stopped by a signal, a long pause) does not take that for other brokers'
silence.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.background import carry_on, report_fault
from penstock.broker.metadata_driver import MetadataUnavailable
from penstock.broker.turns import taking_turns
from penstock.controller.brokers import decide_bootstrap
from penstock.controller.counters import ControllerCounters
from penstock.controller.decision import Decision, View
from penstock.controller.heartbeats import decide_fence_broker
from penstock.controller.liveness import Liveness
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import BROKER_RESOURCE, INTERNAL_TOPICS, MetadataImage
from penstock.metadata.partition import RECOVERING
from penstock.metadata.settings import BrokerSettings

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.controller")

AnswerT = TypeVar("AnswerT", int, bool)

_LEADERS_PER_ROUND = 1_000
_GROWING_AT_A_TIME = 20
_ROUNDS_PER_SESSION = 12
_WATCH_S = 0.25
_UNCLEAN = "unclean.leader.election.enable"
_MOST_NAMED = 10


class ControllerClock:
    """`liveness` and `counters` are for handlers and metrics; `dead` is for who finds that a broker is gone."""

    def __init__(self, broker: "Broker") -> None:
        self.liveness = Liveness()
        self.counters = ControllerCounters()
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._balancing: asyncio.Task[None] | None = None
        self._former_id: int | None = None
        self._former_heard_ms = 0.0
        self._watching: asyncio.TimerHandle | None = None
        self._stopped = False
        self._elections_due = True
        self._growth_due = True
        self._balance_due = True
        self._leaders_at_ms = 0.0
        self._balance_at_ms = 0.0
        broker.driver.add_listener(self._follow)
        broker.driver.add_leadership_listener(self._lead)

    def now_ms(self) -> float:
        return self._broker.clock.monotonic() * 1000

    # -- what is heard of brokers ---------------------------------------------------------------------------------

    def heard_of(self, broker_id: int, epoch: int, metadata_offset: int) -> None:
        """A sign of life of the incarnation that is registered; others count for nothing."""
        known = self._broker.driver.pending.brokers.get(broker_id)
        if known is not None and known.epoch == epoch:
            self.liveness.touch(broker_id, epoch, self.now_ms(), metadata_offset)

    def is_alive(self, broker_id: int, epoch: int) -> bool:
        session_ms = self._broker.settings.broker_session_timeout_ms
        return self.liveness.is_alive(broker_id, epoch, self.now_ms(), session_ms)

    def hands_over(self, broker_id: int, epoch: int) -> None:
        """Leaderships of the broker are about to move: until that is committed it may not stop."""
        self.shutting_down(broker_id, epoch, -1)

    def shutting_down(self, broker_id: int, epoch: int, offset: int) -> None:
        """The broker may stop once the others have the record at this offset."""
        contact = self.liveness.contact(broker_id, epoch)
        if contact is not None:
            contact.shutdown_offset = offset

    async def dead(self, broker_id: int, epoch: int) -> None:
        """Its port refuses connections: that incarnation is fenced at once (D6)."""
        if self._broker.driver.is_active:
            self.liveness.touch(broker_id, epoch, self.now_ms() - 1)
            self.liveness.mark_dead(broker_id, epoch)
            await self._fence(broker_id, epoch, "its port refuses connections")

    # -- terms ----------------------------------------------------------------------------------------------------

    def _lead(self, is_active: bool) -> None:
        self.liveness.forget()
        self._cancel()
        if not is_active:
            self._watch()
        elif not self._stopped:
            self._elections_due = self._growth_due = self._balance_due = True
            self._begin_sessions()
            self._task = asyncio.get_running_loop().create_task(carry_on(self._run, "the controller's clock"))

    def _begin_sessions(self) -> None:
        """Everybody has a whole session, but for the controller before this one: nobody is elected while it is heard
        of, so its silence has lasted for the quorum's timeout already, and for as long as the election took. Not
        more than as long again is counted: this node may have been asleep."""
        timeout_ms, now_ms = self._broker.settings.controller_quorum_fetch_timeout_ms, self.now_ms()
        silent_ms = min(2.0 * timeout_ms, max(timeout_ms, now_ms - self._former_heard_ms))
        for broker in self._broker.image.brokers.values():
            former = broker.id == self._former_id
            self.liveness.touch(broker.id, broker.epoch, now_ms - (silent_ms if former else 0))

    def _watch(self) -> None:
        """Remembers who is the active controller, for the day when this node takes over from it."""
        driver = self._broker.driver
        self._watching = None
        if not driver.is_active and not self._stopped:
            leader_id, silence_ms = driver.leader_id, driver.silence_ms
            if leader_id not in (None, self._broker.node_id):
                if leader_id != self._former_id or silence_ms is not None:
                    self._former_heard_ms = self.now_ms() - (silence_ms or 0.0)
                self._former_id = leader_id
            self._watching = asyncio.get_running_loop().call_later(_WATCH_S, self._watch)

    async def stop(self) -> None:
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.gather(*self._cancel(), return_exceptions=True)

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self._task, self._balancing) if task is not None]
        self._task = self._balancing = None
        for task in tasks:
            task.cancel()
        return tasks

    async def balanced(self) -> None:
        """Waits for a balance that is being planned. For tests."""
        if self._balancing is not None:
            await self._balancing

    def _follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.counters.follow(delta, image)
        if self._broker.driver.is_active:
            _warn_of_unclean_elections(delta)
        if self._watching is None and not self._broker.driver.is_active:
            self._watch()
        if delta.changed_brokers:
            self._growth_due = self._balance_due = True
        if any(values.get(_UNCLEAN) == "true" for values in delta.changed_configs.values()):
            self._elections_due = True
        if (BROKER_RESOURCE, "") in delta.changed_configs:  # of drained brokers, too
            self._balance_due = True
        for change in delta.topic_changes.values():
            self._growth_due |= change.name in INTERNAL_TOPICS
            self._balance_due |= change.created

    # -- rounds ---------------------------------------------------------------------------------------------------

    @property
    def _interval_ms(self) -> float:
        settings = self._broker.settings
        return min(settings.broker_heartbeat_interval_ms, settings.broker_session_timeout_ms / _ROUNDS_PER_SESSION)

    async def _run(self) -> None:
        await self._decide(lambda view: decide_bootstrap(view.image, self._broker.static_settings))
        # Whom this controller has not heard of may be gone: for two sessions nothing is moved to anybody.
        self._leaders_at_ms = self._balance_at_ms = (
            self.now_ms() + 2 * self._broker.settings.broker_session_timeout_ms
        )
        while True:
            interval_ms, begun_ms = self._interval_ms, self.now_ms()
            await asyncio.sleep(interval_ms / 1000)
            now_ms = self.now_ms()
            overslept_ms = now_ms - begun_ms - interval_ms
            if overslept_ms > interval_ms:
                self.liveness.forgive(overslept_ms, now_ms)
            await self.round(now_ms)

    async def round(self, now_ms: float) -> None:
        """One look at everything. Public for tests."""
        broker, settings = self._broker, self._broker.settings
        brokers, session_ms = broker.image.brokers, settings.broker_session_timeout_ms
        if len(brokers) < 2:  # nobody to fence, or to move to; but it may lead what others led
            await self._elect(settings)
            return
        for broker_id, epoch in self.liveness.expired(brokers.values(), now_ms, session_ms):
            if broker_id == broker.node_id:  # this process is alive; its broker says so itself if it is not well
                continue
            if not self.liveness.is_alive(broker_id, epoch, now_ms, session_ms):  # to fence those before took time
                await self._fence(broker_id, epoch, "nothing was heard of it for a session")
        await self._elect(settings)
        await self._grow(settings)
        await self._rebalance(now_ms, settings)

    # What follows is imported when first needed: a node that is alone needs only the first.

    async def _elect(self, settings: BrokerSettings) -> None:
        """Tries again where there is no leader, after a setting has come to allow more."""
        if self._elections_due:
            from penstock.controller.elections import decide_elect_where_leaderless

            self._elections_due = False
            decided = await self._decide(lambda view: decide_elect_where_leaderless(view.image, settings))
            self._elections_due |= decided is None

    async def _grow(self, settings: BrokerSettings) -> None:
        if self._growth_due:
            from penstock.controller.internal_topics import decide_grow_internal_topics

            self._growth_due = False
            grown = await self._decide(
                lambda view: decide_grow_internal_topics(view.image, settings, _GROWING_AT_A_TIME)
            )
            self._growth_due |= grown is None or grown > 0

    async def _rebalance(self, now_ms: float, settings: BrokerSettings) -> None:
        if settings.auto_leader_rebalance_enable and now_ms >= self._leaders_at_ms:
            from penstock.controller.elections import decide_rebalance_leaders

            self._leaders_at_ms = now_ms + settings.leader_imbalance_check_interval_seconds * 1000
            await self._decide(lambda view: decide_rebalance_leaders(view.image, settings, _LEADERS_PER_ROUND))
        is_due = self._balance_due and now_ms >= self._balance_at_ms and self._balancing is None
        if settings.cluster_balance_enable and is_due:
            self._balance_at_ms = now_ms + settings.cluster_balance_interval_ms
            self._balance_due = False  # until brokers or topics come, which they may while this is decided
            self._balancing = asyncio.get_running_loop().create_task(
                self._balance(settings.cluster_balance_max_moves)
            )
            self._balancing.add_done_callback(self._end_balancing)

    async def _balance(self, most: int) -> None:
        """A plan looks at every partition: it is made in turns with others, and what is still as it was is begun,
        unless it is not wanted any more. Rounds go on meanwhile, so that nobody is fenced late."""
        from penstock.controller.balance import balance_in_steps, decide_begin

        plan = await taking_turns(balance_in_steps(self._broker.driver.pending, most))

        def begin(view: View) -> Decision[int]:
            settings = self._broker.settings
            return decide_begin(view.image, plan, settings) if settings.cluster_balance_enable else Decision((), 0)

        moving = await self._decide(begin)
        self._balance_due |= moving is None or moving > 0 or bool(plan.moves)
        if moving:
            log.info("%d partitions are on the way to other brokers", moving)

    def _end_balancing(self, task: asyncio.Task[None]) -> None:
        if self._balancing is task:
            self._balancing = None
        report_fault(task, "balancing failed")

    async def _fence(self, broker_id: int, epoch: int, why: str) -> None:
        settings, known = self._broker.settings, self._broker.image.brokers.get(broker_id)
        level = logging.INFO if known is not None and known.in_controlled_shutdown else logging.WARNING
        if await self._decide(lambda view: decide_fence_broker(view, broker_id, epoch, settings)):
            log.log(level, "broker %d (epoch %d) is fenced: %s", broker_id, epoch, why)

    async def _decide(self, decide: Callable[[View], Decision[AnswerT]]) -> int | None:
        """None: nothing was decided, and what was due is due again in the next round. A controller that has lost its
        place learns it by the next leadership change."""
        try:
            answer: AnswerT = await self._broker.controller.submit(decide)
            return int(answer)
        except MetadataUnavailable as error:
            log.debug("nothing was decided: %s", error)
            return None


def _warn_of_unclean_elections(delta: MetadataDelta) -> None:
    """Counters say how many there were; whoever looks for the records wants to know where."""
    changes = [change for change in delta.topic_changes.values() if change.unclean_elections]
    led = [
        f"{change.name}-{number} by {change.partitions[number].leader}"
        for change in changes
        for number in change.changed
        if change.partitions[number].leader_recovery_state == RECOVERING
    ]
    if led:
        more = "" if len(led) <= _MOST_NAMED else f" and {len(led) - _MOST_NAMED} more"
        log.warning("led uncleanly, records may be lost: %s%s", ", ".join(led[:_MOST_NAMED]), more)
