"""A broker registers, reports, is fenced and unfenced, hands over; the controller is a script."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import background
from penstock.broker.broker_probes import BrokerProbes
from penstock.broker.controller_channel import ControllerUnavailable
from penstock.broker.image_watch import ImageWatch
from penstock.broker.lifecycle import Lifecycle, Presence, RegistrationRefused
from penstock.broker.metadata_driver import AmongStrangers
from penstock.metadata.delta import MetadataDelta
from penstock.metadata.image import BrokerImage, MetadataImage
from penstock.metadata.listeners import Listener
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import ErrorCode, Refusal
from penstock.model.ports import SystemClock
from penstock.wire.generated.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from penstock.wire.generated.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from tests.waiting import eventually_async

LISTENER = Listener("PLAINTEXT", "127.0.0.1", 9092)
PRESENCE = Presence(b"i" * 16, (LISTENER,), (b"d" * 16,), clean=True, previous_epoch=7)


def image_with(fenced: bool, end_offset: int = 12, epoch: int = 11) -> MetadataImage:
    brokers = {1: BrokerImage(1, epoch, b"i" * 16, (LISTENER,), None, fenced, False, (b"d" * 16,))}
    return MetadataImage(end_offset=end_offset, brokers=brokers)


class World:
    """A broker as the lifecycle sees it. The controller takes it in, and unfences it with its second heartbeat."""

    def __init__(self, **settings: str) -> None:
        listeners = "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
        given = {"broker.heartbeat.interval.ms": "5", "listeners": listeners, **settings}
        self.settings = self.static_settings = BrokerSettings.from_mapping(given)
        self.node_id, self.cluster_id, self.epoch = 1, "c", -1
        self.image = MetadataImage()
        self.image_watch = ImageWatch(lambda: self.image)
        self.channel = self
        self.clock = SystemClock()
        self.driver = SimpleNamespace(is_active=False, leader_id=2, wait_active_controller_known=self.found)
        self.controller = self
        self.requests: list[Any] = []
        self.refusals: list[int] = []
        self.failed: list[bytes] = []
        self.heartbeat: Callable[[BrokerHeartbeatRequest], BrokerHeartbeatResponse] = self.unfence

    async def register(self, _: Any) -> Refusal:
        return Refusal(ErrorCode.DUPLICATE_BROKER_REGISTRATION, "registered with other data directories")

    async def found(self) -> None:
        pass

    def offline_directories(self) -> list[bytes]:
        return self.failed

    def publish(self, image: MetadataImage) -> None:
        self.image = image
        self.image_watch.on_metadata(MetadataDelta(image), image)

    async def send(self, request: Any, _type: Any, _timeout_ms: float, *, channel: str = "") -> Any:
        self.requests.append(request)
        await asyncio.sleep(0)
        if isinstance(request, BrokerRegistrationRequest):
            if self.refusals:
                return BrokerRegistrationResponse(error_code=self.refusals.pop(0))
            self.publish(image_with(fenced=True))
            return BrokerRegistrationResponse(broker_epoch=11)
        return self.heartbeat(request)

    def unfence(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        beats = [each for each in self.requests if isinstance(each, BrokerHeartbeatRequest)]
        if len(beats) > 1:
            self.publish(image_with(fenced=False, end_offset=13))
        return BrokerHeartbeatResponse(is_caught_up=True, is_fenced=len(beats) < 2)

    @property
    def beats(self) -> list[BrokerHeartbeatRequest]:
        return [each for each in self.requests if isinstance(each, BrokerHeartbeatRequest)]


def with_started(body: Callable[[World, Lifecycle], Awaitable[None]], world: World | None = None) -> None:
    async def scenario() -> None:
        broker = world or World()
        lifecycle = Lifecycle(broker, PRESENCE)  # type: ignore[arg-type]
        await lifecycle.start()
        try:
            await body(broker, lifecycle)
        finally:
            await lifecycle.stop()

    asyncio.run(scenario())


def test_starts_when_it_is_unfenced_and_knows_it() -> None:
    async def body(broker: World, lifecycle: Lifecycle) -> None:
        registration = broker.requests[0]
        assert (registration.broker_id, registration.incarnation_id) == (1, b"i" * 16)
        assert (registration.previous_broker_epoch, registration.log_dirs) == (7, [b"d" * 16])
        assert lifecycle.epoch == 11
        assert broker.beats[0].current_metadata_offset == 11
        assert not broker.image.brokers[1].fenced

    with_started(body)


def test_after_a_silence_metadata_has_to_tell_what_was_done_in_it() -> None:
    """The controller takes a broker back that it has fenced meanwhile, before that can know of it."""

    async def body(broker: World, lifecycle: Lifecycle) -> None:
        ages_ms: list[float] = []
        broker.driver.knows_since = lambda age_ms: ages_ms.append(age_ms)
        assert not lifecycle.knows_its_place()  # it was told that it was fenced
        broker.driver.knows_since = lambda _: True
        assert lifecycle.knows_its_place()
        broker.driver.knows_since = lambda age_ms: ages_ms.append(age_ms)
        assert lifecycle.knows_its_place()
        silent_since = lifecycle.heard_at = lifecycle.heard_at - 1e6
        await eventually_async(lambda: lifecycle.heard_at > silent_since)
        assert not lifecycle.knows_its_place()
        assert 0 <= ages_ms[-1] < 1e6, "since it was heard again"
        broker.driver.knows_since = lambda _: True
        assert lifecycle.knows_its_place()

    with_started(body)


def test_waits_for_an_earlier_incarnation_to_be_gone() -> None:
    world = World()
    world.refusals = [ErrorCode.DUPLICATE_BROKER_REGISTRATION] * 3

    async def body(broker: World, lifecycle: Lifecycle) -> None:
        assert lifecycle.epoch == 11

    with_started(body, world)


@pytest.mark.parametrize(
    ("code", "alone", "words"),
    [
        (ErrorCode.DUPLICATE_BROKER_REGISTRATION, True, "other data directories"),
        (ErrorCode.INCONSISTENT_CLUSTER_ID, False, "another cluster"),
        (ErrorCode.UNSUPPORTED_VERSION, False, "refuses broker 1"),
    ],
)
def test_refusals_are_told(code: ErrorCode, alone: bool, words: str) -> None:
    async def scenario() -> None:
        world = World()
        world.driver.is_active = alone
        world.refusals = [code]
        with pytest.raises(RegistrationRefused, match=words):
            await Lifecycle(world, PRESENCE).start()  # type: ignore[arg-type]

    asyncio.run(scenario())


def test_a_failed_directory_is_told_at_once() -> None:
    async def body(broker: World, lifecycle: Lifecycle) -> None:
        await eventually_async(lambda: not lifecycle.is_fenced)
        broker.failed = [b"d" * 16]
        lifecycle.directory_failed()
        await eventually_async(lambda: broker.beats[-1].offline_log_dirs == [b"d" * 16])

    with_started(body, World(**{"broker.heartbeat.interval.ms": "60000"}))


def test_trouble_with_the_controller_does_not_end_the_reports() -> None:
    async def body(broker: World, lifecycle: Lifecycle) -> None:
        troubles = iter([ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NONE])

        def trouble(_: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            code = next(troubles, None)
            if code is None:
                raise ControllerUnavailable("none")
            return BrokerHeartbeatResponse(error_code=code, is_fenced=True)

        broker.heartbeat = trouble
        seen = len(broker.beats)
        await eventually_async(lambda: len(broker.beats) > seen + 4)
        assert lifecycle.is_fenced

    with_started(body)


def test_a_bug_does_not_end_the_reports(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody would hear of this broker any more, and it would not know."""
    monkeypatch.setattr(background, "_PAUSE_S", 0.01)

    async def body(broker: World, lifecycle: Lifecycle) -> None:
        answer = broker.heartbeat

        def bug(_: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            broker.heartbeat = answer
            raise RuntimeError("a bug")

        broker.heartbeat = bug
        lifecycle.directory_failed()
        seen = len(broker.beats)
        await eventually_async(lambda: len(broker.beats) > seen + 2)
        assert "reporting to the controller failed" in caplog.text

    with_started(body)


def test_leaves_when_others_lead() -> None:
    async def body(broker: World, lifecycle: Lifecycle) -> None:
        await eventually_async(lambda: not lifecycle.is_fenced)
        broker.heartbeat = lambda request: BrokerHeartbeatResponse(
            is_fenced=False, should_shut_down=request.want_shut_down and len(broker.beats) > 9
        )
        await lifecycle.hand_over()
        assert broker.beats[-1].want_shut_down
        assert len(broker.beats) == 10

    with_started(body)


def test_leaves_when_there_is_no_controller_to_tell() -> None:
    async def body(broker: World, lifecycle: Lifecycle) -> None:
        await eventually_async(lambda: not lifecycle.is_fenced)

        def nobody(_: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            raise ControllerUnavailable("none")

        broker.heartbeat = nobody
        broker.driver.leader_id = None
        await lifecycle.hand_over()

    with_started(body)


def test_waits_for_a_controller_that_takes_long_to_hand_over() -> None:
    """What it was asked for is done with many partitions after seconds; the request has timed out by then."""

    async def body(broker: World, lifecycle: Lifecycle) -> None:
        await eventually_async(lambda: not lifecycle.is_fenced)
        begun = len(broker.beats)

        def late(_: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
            if len(broker.beats) < begun + 3:
                raise ControllerUnavailable("no answer in time")
            return BrokerHeartbeatResponse(is_fenced=False, should_shut_down=True)

        broker.heartbeat = late
        await lifecycle.hand_over()
        assert len(broker.beats) >= begun + 3

    with_started(body)


@pytest.mark.parametrize(
    ("verdicts", "fenced", "active", "dead"),
    [
        (["refused"], False, True, [(1, 11)]),
        (["listens", "silent", "refused"], False, True, [(1, 11)]),
        (["listens", "silent", "listens"], False, True, []),
        ([], True, True, []),
        ([], False, False, []),
    ],
)
def test_only_a_refused_connection_is_death(
    verdicts: list[str], fenced: bool, active: bool, dead: list[tuple[int, int]]
) -> None:
    async def scenario() -> None:
        world = World()
        world.image, world.driver.is_active = image_with(fenced), active
        left, found = list(verdicts), []

        async def probe(_address: Any, _timeout_ms: float) -> str:
            return left.pop(0)

        async def report(broker_id: int, epoch: int) -> None:
            found.append((broker_id, epoch))

        world.peers = SimpleNamespace(probe=probe)  # type: ignore[attr-defined]
        probes = BrokerProbes(world, report)  # type: ignore[arg-type]
        probes.connection_lost(1, 10)  # of an incarnation that is history
        probes.connection_lost(1, 11)
        await eventually_async(lambda: not probes._tasks)
        assert (left, found) == ([], dead)

    asyncio.run(scenario())


def test_a_controller_that_stops_looks_after_nobody() -> None:
    async def scenario() -> None:
        world = World()
        world.image, world.driver.is_active = image_with(False), True
        probes = BrokerProbes(world, None)  # type: ignore[arg-type]
        await probes.stop()
        probes.connection_lost(1, 11)
        assert not probes._tasks

    asyncio.run(scenario())


def test_a_start_without_a_controller_says_whom_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.broker.lifecycle._SILENT_S", 0.0)
    voters = "1@127.0.0.1:9093,2@127.0.0.1:9095,3@127.0.0.1:9097"
    world = World(**{"node.id": "1", "controller.quorum.voters": voters})

    async def never_found() -> None:
        await eventually_async(lambda: "2@127.0.0.1:9095" in caplog.text)
        raise TimeoutError

    world.driver.wait_active_controller_known = never_found

    async def story() -> None:
        with pytest.raises(RegistrationRefused, match="no controller was found"):
            await Lifecycle(world, PRESENCE).start()  # type: ignore[arg-type]

    asyncio.run(story())
    assert "a majority" in caplog.text


def test_a_start_among_controllers_of_another_cluster_says_so() -> None:
    world = World()

    async def strangers() -> None:
        raise AmongStrangers("2, 3")

    world.driver.wait_active_controller_known = strangers

    async def story() -> None:
        with pytest.raises(
            RegistrationRefused, match=r"another cluster than this node \(node 2, 3\).* of cluster c\."
        ):
            await Lifecycle(world, PRESENCE).start()  # type: ignore[arg-type]

    asyncio.run(story())
