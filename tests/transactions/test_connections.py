"""Random clients with one connection at a time: nothing they wait for is called late, and what is stuck is."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.transactions.connections import ConnectionTrail
from penstock.transactions.state import Identity

PRODUCER = Identity(7, 3)
STEPS = st.lists(st.sampled_from(["add", "end", "end again", "reconnect", "get stuck"]), max_size=80)


@given(STEPS, st.booleans())
def test_one_connection_at_a_time(steps: list[str], two_lanes: bool) -> None:
    """With `two_lanes` a client adds over one connection and ends over another."""
    trail = ConnectionTrail()
    newest = 2 if two_lanes else 1
    adds_over, ends_over = 1, newest
    open_, ended = False, False
    stuck_ends: list[int] = []
    for step in steps:
        if step == "add":
            assert open_ or not trail.is_late(PRODUCER, adds_over)
            trail.note_add(PRODUCER, adds_over)
            open_ = True
        elif (step == "end" and open_) or (step == "end again" and not open_ and ended):
            assert not open_ or not trail.is_late(PRODUCER, ends_over)
            trail.note_end(PRODUCER, ends_over)
            open_, ended = False, True
        elif step == "reconnect" or (step == "get stuck" and (not open_ or two_lanes)):
            newest += 2 if two_lanes else 1
            adds_over, ends_over = (newest - 1 if two_lanes else newest), newest
        elif step == "get stuck" and open_:
            stuck_ends.append(ends_over)
            newest += 1
            adds_over = ends_over = newest
            # The repetition gets through, the next transaction begins, and then the stuck request arrives.
            trail.note_end(PRODUCER, ends_over)
            trail.note_add(PRODUCER, adds_over)
            ended = True
        if open_ and not two_lanes:
            assert all(trail.is_late(PRODUCER, connection) for connection in stuck_ends)


def test_another_epoch_is_another_trail() -> None:
    trail = ConnectionTrail()
    for connection in (1, 5):
        trail.note_add(PRODUCER, connection)
        trail.note_end(PRODUCER, connection)
    assert trail.is_late(PRODUCER, 1)
    successor = Identity(7, 4)
    assert not trail.is_late(successor, 1)
    trail.note_add(successor, 1)
    assert not trail.is_late(successor, 1)


def test_a_coordinator_that_saw_only_the_end_knows_where_the_client_is() -> None:
    """Found by the model: reloaded in the middle of a transaction, whose end then got stuck once."""
    trail = ConnectionTrail()
    trail.note_end(PRODUCER, 10)
    trail.note_add(PRODUCER, 10)
    assert trail.is_late(PRODUCER, 9)


def test_a_client_with_many_connections_is_left_alone() -> None:
    trail = ConnectionTrail()
    trail.note_add(PRODUCER, 100)
    trail.note_end(PRODUCER, 100)
    for connection in range(101, 140):
        trail.note_add(PRODUCER, connection)
    assert not trail.is_late(PRODUCER, 50)
