"""A broker's standing in its cluster: registers, reports, serves once it is unfenced, hands over before it stops.

registering → (epoch) → fenced → (its metadata has caught up) → unfenced → (wants to stop) → handed over

Hard rules:
- Every incarnation has an id of its own, so that a registration whose answer was lost is recognised.
- Heartbeats never stop while the broker runs, whatever the controller says: who is fenced comes back by them.
- A broker that no other can join (its own controller, no listener for one) has nobody to report to.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.background import carry_on
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.metadata_driver import AmongStrangers
from penstock.controller.brokers import Registration
from penstock.metadata.features import SUPPORTED_FEATURES
from penstock.metadata.listeners import Listener
from penstock.model.errors import ErrorCode, Refusal, describe_error

if TYPE_CHECKING:  # codecs are imported where they are used: a broker that is alone needs none of them
    from penstock.broker.broker import Broker
    from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatResponse
    from penstock.wire.generated.broker_registration import BrokerRegistrationRequest

log = logging.getLogger("penstock.broker")

_CHANNEL = "heartbeat"  # a connection of its own: when it is lost, the controller asks whether we are dead
_IMPATIENT_S = (0.01, 0.02, 0.05, 0.1)  # pauses while something is waited for
_HAND_OVER_S = 15.0
_SILENT_S = 5.0  # a start that still looks for a controller says so
_NO_CONTROLLER_MS = 2_000  # a broker that stops waits so long for one: the others may be stopping too

# An incarnation before this one is not fenced yet; the controller's disk is full just now.
_PASSING = frozenset({ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.KAFKA_STORAGE_ERROR})


class RegistrationRefused(Exception):
    """The cluster does not take this broker in. The message says why and what to do."""


class Presence(NamedTuple):
    """What a broker says of itself when it registers."""

    incarnation_id: bytes
    listeners: tuple[Listener, ...]
    directories: tuple[bytes, ...]
    clean: bool  # the last stop was orderly
    previous_epoch: int  # of the incarnation that stopped so; -1 where that is not known


class Lifecycle:
    def __init__(self, broker: "Broker", presence: Presence) -> None:
        self.is_fenced = True
        self._broker = broker
        self._presence = presence
        self._wake = asyncio.Event()
        self._handed_over = asyncio.Event()
        self._want_shut_down = False
        self._task: asyncio.Task[None] | None = None
        self._complained = False
        self.heard_at = broker.clock.monotonic()
        """When the last report left that the controller has answered: it knows of us from then on, at the least."""
        self._back_at: float | None = None
        """When the controller answered after a silence, until metadata tells what it did in that."""

    @property
    def incarnation_id(self) -> bytes:
        return self._presence.incarnation_id

    @property
    def epoch(self) -> int:
        """The broker epoch; -1 before the registration."""
        return self._broker.epoch

    # -- coming -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when this broker is registered, unfenced and knows it. Raises `RegistrationRefused`."""
        broker = self._broker
        await self._find_controller()
        if self._is_alone and not broker.static_settings.controller_listener_set:
            broker.epoch = await self._register_alone()
            self.is_fenced = False
            return
        epoch = broker.epoch = await self._register()
        await broker.image_watch.until(lambda image: image.end_offset > epoch)
        self._task = asyncio.get_running_loop().create_task(carry_on(self._report, "reporting to the controller"))
        own = broker.node_id
        await broker.image_watch.until(lambda image: own in image.brokers and not image.brokers[own].fenced)

    async def _register(self) -> int:
        from penstock.wire.generated.broker_registration import BrokerRegistrationResponse

        broker = self._broker
        settings = broker.settings
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.initial_broker_registration_timeout_ms / 1000
        request = self._registration()
        while True:
            left_ms = (deadline - loop.time()) * 1000
            try:
                answer = await broker.channel.send(request, BrokerRegistrationResponse, left_ms)
            except ControllerUnavailable as error:
                raise RegistrationRefused(f"no controller took this broker in: {error}") from None
            if answer.error_code == ErrorCode.NONE:
                return answer.broker_epoch
            pause_s = settings.broker_heartbeat_interval_ms / 1000
            waits = answer.error_code in _PASSING and not self._is_alone
            if not waits or loop.time() + pause_s > deadline:
                raise RegistrationRefused(_why_refused(answer.error_code, broker.node_id))
            self._complain("not registered yet: %s", _why_refused(answer.error_code, broker.node_id))
            await asyncio.sleep(pause_s)

    async def _find_controller(self) -> None:
        timeout_ms = self._broker.settings.initial_broker_registration_timeout_ms
        voters = ", ".join(self._broker.static_settings.controller_quorum_voters) or "none"
        telling = asyncio.get_running_loop().call_later(
            _SILENT_S,
            log.warning,
            "no controller leads yet: a majority of controller.quorum.voters has to run (%s); waiting up to %d s",
            voters,
            timeout_ms // 1000,
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._broker.driver.wait_active_controller_known()
        except TimeoutError:
            raise RegistrationRefused(
                f"no controller was found in {timeout_ms} ms; look at the other nodes of controller.quorum.voters"
            ) from None
        except AmongStrangers as strangers:
            raise RegistrationRefused(
                f"the controllers belong to another cluster than this node (node {strangers}); it is of cluster "
                f"{self._broker.cluster_id}. Correct controller.quorum.voters, or give the node their cluster.id and "
                "an empty data directory"
            ) from None
        finally:
            telling.cancel()

    async def _register_alone(self) -> int:
        """Without the way over requests: starting is to cost one sync."""
        presence, settings = self._presence, self._broker.settings
        registration = Registration(
            self._broker.node_id,
            presence.incarnation_id,
            presence.listeners,
            settings.broker_rack,
            presence.directories,
            presence.clean,
            host=settings.broker_host,
        )
        epoch = await self._broker.controller.register(registration)
        if isinstance(epoch, Refusal):
            raise RegistrationRefused(epoch.message)
        return epoch

    def _registration(self) -> "BrokerRegistrationRequest":
        from penstock.wire.generated.broker_registration import BrokerRegistrationRequest

        broker, presence = self._broker, self._presence
        request = BrokerRegistrationRequest
        return request(
            broker_id=broker.node_id,
            cluster_id=broker.cluster_id,
            incarnation_id=presence.incarnation_id,
            listeners=[
                request.Listener(each.name, each.host, each.port, each.security_protocol_code)
                for each in presence.listeners
            ],
            features=[request.Feature(name, low, high) for name, (low, high) in SUPPORTED_FEATURES.items()],
            rack=broker.settings.broker_rack,
            log_dirs=list(presence.directories),
            previous_broker_epoch=presence.previous_epoch if presence.clean else -1,
            host=broker.settings.broker_host,
        )

    @property
    def _is_alone(self) -> bool:
        """No other broker is registered, and the controller is in this process."""
        broker = self._broker
        return broker.driver.is_active and set(broker.image.brokers) <= {broker.node_id}

    # -- being there ------------------------------------------------------------------------------------------------

    def directory_failed(self) -> None:
        """The controller is told at once: leaderships must move."""
        self._wake.set()

    async def _report(self) -> None:
        impatience = 0
        while True:
            self._wake.clear()
            done = await self._beat()
            waiting = self.is_fenced or self._want_shut_down
            impatience = min(impatience + 1, len(_IMPATIENT_S)) if waiting and done else 0
            pause_s = self._broker.settings.broker_heartbeat_interval_ms / 1000
            if impatience:
                pause_s = min(pause_s, _IMPATIENT_S[impatience - 1])
            if self._handed_over.is_set():
                return
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _beat(self) -> bool:
        """One heartbeat; answers whether the controller took it."""
        from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse

        broker = self._broker
        request = BrokerHeartbeatRequest(
            broker.node_id,
            broker.epoch,
            broker.image.end_offset - 1,
            want_shut_down=self._want_shut_down,
            offline_log_dirs=broker.offline_directories(),
        )
        timeout_ms = _NO_CONTROLLER_MS if self._want_shut_down else broker.settings.broker_session_timeout_ms
        sent_at = broker.clock.monotonic()
        try:
            answer = await broker.channel.send(request, BrokerHeartbeatResponse, timeout_ms, channel=_CHANNEL)
        except ControllerUnavailable as error:
            self._complain("the controller does not hear this broker: %s", error)
            if self._want_shut_down and broker.driver.leader_id is None:  # one that is known may be at work on it
                self._handed_over.set()
            return False
        if answer.error_code != ErrorCode.NONE:
            self._complain("the controller refuses this broker's reports: %s", describe_error(answer.error_code))
            self.is_fenced = True
            if self._want_shut_down:
                self._handed_over.set()
            return False
        now = broker.clock.monotonic()
        if answer.is_fenced or (now - self.heard_at) * 1000 > broker.settings.broker_session_timeout_ms:
            self._back_at = now
        self.heard_at = max(self.heard_at, min(sent_at, self._followed_at()))
        self._note(answer)
        return True

    def knows_its_place(self) -> bool:
        """Not after a silence, until metadata tells what the controller did in it: that takes a broker back at its
        first report, and may have given what it led to others."""
        if self._back_at is not None:
            if not self._broker.driver.knows_since((self._broker.clock.monotonic() - self._back_at) * 1000):
                return False
            self._back_at = None
        return True

    def _followed_at(self) -> float:
        """A controller in this process speaks for the cluster only as long as a majority follows it."""
        broker = self._broker
        silence_ms = broker.driver.silence_ms if broker.driver.is_active else None
        return broker.clock.monotonic() - (silence_ms or 0.0) / 1000

    def _note(self, answer: "BrokerHeartbeatResponse") -> None:
        if answer.is_fenced and not self.is_fenced:
            log.warning("this broker was fenced: its reports came too late, or its port refused connections")
        elif self.is_fenced and not answer.is_fenced:
            log.info("broker %d is unfenced, epoch %d", self._broker.node_id, self.epoch)
        self.is_fenced = answer.is_fenced
        self._complained = False
        if self._want_shut_down and answer.should_shut_down:
            self._handed_over.set()

    def _complain(self, message: str, why: object) -> None:
        """Once per trouble, not twice a second."""
        if not self._complained:
            self._complained = True
            log.warning(message, why)

    # -- going ------------------------------------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Returns when others lead what this broker led, or when waiting for it is no use."""
        if self._task is None:
            return
        if self._broker.settings.controlled_shutdown_enable and not self._is_alone and not self.is_fenced:
            self._want_shut_down = True
            self._wake.set()
            try:
                async with asyncio.timeout(_HAND_OVER_S):
                    await self._handed_over.wait()
            except TimeoutError:
                log.warning("leaderships were not handed over in %.0f s; stopping all the same", _HAND_OVER_S)
        await self.stop()

    async def stop(self) -> None:
        """Without a word to anybody."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


def _why_refused(code: int, node_id: int) -> str:
    if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
        return (
            f"node id {node_id} is registered with other data directories; start the node with those, or give it "
            "another node.id"
        )
    if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
        return "the controllers belong to another cluster; check controller.quorum.voters and the data directory"
    if code == ErrorCode.KAFKA_STORAGE_ERROR:
        return (
            f"broker {node_id} cannot be registered while the disk of the active controller is full; free space there"
        )
    return f"the cluster refuses broker {node_id}: {describe_error(code)}"
