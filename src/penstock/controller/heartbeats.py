"""A broker's life between registration and end: caught up, unfenced, fenced, shutting down, a directory less.

fenced --(caught up)--> unfenced --(wants to stop)--> in controlled shutdown --(leads nothing more)--> may stop
   ^--(wants it, silence, a refused connection)--'
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from penstock.controller.broker_changes import (
    changes_by_fencing,
    changes_by_lost_directories,
    changes_by_shutdown,
    changes_by_unfencing,
)
from penstock.controller.brokers import check_broker_epoch
from penstock.controller.decision import Decision, View
from penstock.controller.liveness import Liveness
from penstock.controller.rules import Rules
from penstock.metadata.image import BrokerImage
from penstock.metadata.settings import BrokerSettings
from penstock.model.errors import Refusal
from penstock.wire.generated.records_metadata import BrokerRegistrationChangeRecord
from penstock.wire.struct import RecordMessage

_YES, _NO = 1, -1  # of the two-way fields of BrokerRegistrationChangeRecord; 0 leaves as it is


class Heartbeat(NamedTuple):
    """`metadata_offset` is that of the last record which the broker has replayed."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False
    offline_directories: tuple[bytes, ...] = ()


class HeartbeatAnswer(NamedTuple):
    """`hands_over`: leaderships move by this decision, or by an earlier one that may not be committed yet. The others
    must know of all records up to this decision's before it may stop."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool
    hands_over: bool = False


def decide_heartbeat(
    view: View, beat: Heartbeat, liveness: Liveness, settings: BrokerSettings
) -> Decision[HeartbeatAnswer | Refusal]:
    """The sign of life itself was taken when the request came (`Liveness.touch`)."""
    image = view.image
    broker = check_broker_epoch(image, beat.broker_id, beat.broker_epoch)
    if isinstance(broker, Refusal):
        return Decision([], broker)
    caught_up = beat.metadata_offset >= broker.epoch
    failed = set(beat.offline_directories) & set(broker.directories)
    if failed and failed != set(broker.directories):
        records = _directory_records(view, broker, failed, settings)
        return Decision(records, HeartbeatAnswer(caught_up, broker.fenced, False))
    if broker.fenced:
        unfences = caught_up and not beat.want_fence and not beat.want_shut_down and not failed
        records = _unfence_records(view, broker, settings) if unfences else ()
        return Decision(records, HeartbeatAnswer(caught_up, not unfences, beat.want_shut_down))
    if beat.want_fence or failed:
        return Decision(_fence_records(view, broker, settings), HeartbeatAnswer(caught_up, True, beat.want_shut_down))
    if beat.want_shut_down:
        return _decide_shutdown(view, broker, liveness, settings)
    return Decision((), HeartbeatAnswer(caught_up, False, False))


def decide_fence_broker(view: View, broker_id: int, epoch: int, settings: BrokerSettings) -> Decision[bool]:
    """Fences one incarnation; answers False when it is gone or fenced already."""
    broker = view.image.brokers.get(broker_id)
    if broker is None or broker.epoch != epoch or broker.fenced:
        return Decision([], False)
    return Decision(_fence_records(view, broker, settings), True)


def _fence_records(view: View, broker: BrokerImage, settings: BrokerSettings) -> Iterable[RecordMessage]:
    fence = BrokerRegistrationChangeRecord(broker.id, broker.epoch, fenced=_YES)
    return chain([fence], changes_by_fencing(view.image, broker.id, Rules(view.image, settings)))


def _unfence_records(view: View, broker: BrokerImage, settings: BrokerSettings) -> Iterable[RecordMessage]:
    stopping = _NO if broker.in_controlled_shutdown else 0
    unfence = BrokerRegistrationChangeRecord(broker.id, broker.epoch, _NO, stopping)
    return chain([unfence], changes_by_unfencing(view.image, broker.id, Rules(view.image, settings)))


def _directory_records(
    view: View, broker: BrokerImage, failed: set[bytes], settings: BrokerSettings
) -> Iterable[RecordMessage]:
    remaining = [directory for directory in broker.directories if directory not in failed]
    change = BrokerRegistrationChangeRecord(broker.id, broker.epoch, log_dirs=remaining)
    rules = Rules(view.image, settings)
    return chain([change], changes_by_lost_directories(view.image, broker.id, remaining, rules))


def _decide_shutdown(
    view: View, broker: BrokerImage, liveness: Liveness, settings: BrokerSettings
) -> Decision[HeartbeatAnswer | Refusal]:
    """First its leaderships move; it may stop when the others know of it, so that clients find the new leaders."""
    image = view.image
    rules = Rules(image, settings)
    if not broker.in_controlled_shutdown:
        flag = BrokerRegistrationChangeRecord(broker.id, broker.epoch, in_controlled_shutdown=_YES)
        moves = _begun(changes_by_shutdown(image, broker.id, rules))
        answer = HeartbeatAnswer(True, False, moves is None, moves is not None)
        return Decision(chain([flag], moves or ()), answer)
    contact = liveness.contact(broker.id, broker.epoch)
    if contact is None or contact.shutdown_offset < 0:  # asked again before that was committed, or by another leader
        return Decision([], HeartbeatAnswer(True, False, False, hands_over=True))
    if not liveness.all_have(image.brokers.values(), contact.shutdown_offset, besides=broker.id):
        return Decision([], HeartbeatAnswer(True, False, False))
    moves = _begun(changes_by_shutdown(image, broker.id, rules))  # what has become movable since
    return Decision(moves or (), HeartbeatAnswer(True, False, moves is None, moves is not None))


def _begun(records: Iterator[RecordMessage]) -> Iterator[RecordMessage] | None:
    """The same records, of which only the first is made now; None where there are none."""
    first = next(records, None)
    return chain([first], records) if first is not None else None
