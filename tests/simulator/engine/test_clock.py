"""Events at absolute times."""

from collections.abc import Generator

from hypothesis import given
from hypothesis import strategies as st
from simpy.events import Event

from simulator.engine.clock import ENDS, URGENT, Clock

Told = list[tuple[float, str]]


def hear(clock: Clock, event: Event, told: Told, name: str) -> None:
    def heard(_: Event) -> None:
        told.append((clock.now, name))

    assert event.callbacks is not None
    event.callbacks.append(heard)


def test_time_is_a_float_from_the_start() -> None:
    assert isinstance(Clock().now, float)


def test_events_fire_at_the_very_time() -> None:
    """Where a timeout would not: 0.2 + (0.9 - 0.2) is not 0.9."""
    assert 0.2 + (0.9 - 0.2) != 0.9
    clock = Clock()
    told: Told = []
    hear(clock, clock.at(0.2), told, "first")
    clock.run()
    hear(clock, clock.at(0.9), told, "second")
    clock.run()
    assert told == [(0.2, "first"), (0.9, "second")]


@given(times=st.lists(st.floats(0, 1e6), max_size=20), urgent=st.lists(st.booleans(), min_size=20, max_size=20))
def test_earlier_first_then_urgent_then_in_order(times: list[float], urgent: list[bool]) -> None:
    clock = Clock()
    told: Told = []
    for i, time_s in enumerate(times):
        hear(clock, clock.at(time_s, URGENT if urgent[i] else ENDS), told, str(i))
    clock.run()
    expected = sorted(range(len(times)), key=lambda i: (times[i], not urgent[i], i))
    assert told == [(times[i], str(i)) for i in expected]


def test_a_moved_event_fires_once_at_its_new_time() -> None:
    clock = Clock()
    told: Told = []
    event = clock.at(5.0)
    hear(clock, event, told, "moved")
    clock.move(event, 3.0)
    clock.run()
    assert told == [(3.0, "moved")]
    assert clock.now == 3.0, "it is not waited for any longer"


def test_a_moved_event_among_others_leaves_an_empty_one() -> None:
    clock = Clock()
    told: Told = []
    event = clock.at(5.0)
    hear(clock, event, told, "moved")
    clock.at(6.0)
    clock.move(event, 3.0)
    clock.run()
    assert told == [(3.0, "moved")]
    assert clock.now == 6.0


def test_a_process_waits_for_a_moved_event() -> None:
    """As an engine does at rest: it is woken when the event is moved to now, once everybody else of now has been."""
    clock = Clock()
    told: Told = []
    pause: list[Event] = []

    def server() -> Generator[Event, object, None]:
        pause.append(clock.event())
        yield pause[0]
        told.append((clock.now, "woken"))

    def waker() -> Generator[Event, object, None]:
        yield clock.at(2.0, URGENT)
        pause[0] = clock.move(pause[0], clock.now)
        pause[0] = clock.move(pause[0], clock.now)
        told.append((clock.now, "moved"))

    hear(clock, clock.at(2.0), told, "another")
    clock.process(server())
    clock.process(waker())
    clock.run()
    assert told == [(2.0, "moved"), (2.0, "another"), (2.0, "woken")]


def test_skipping_where_nothing_is_due() -> None:
    clock = Clock()
    clock.at(5.0)
    assert clock.skip_to(4.0)
    assert clock.now == 4.0
    assert not clock.skip_to(5.0), "what is due at that very time comes first"
    assert not clock.skip_to(6.0)
    assert clock.now == 4.0
    clock.run()
    assert clock.now == 5.0
    assert clock.skip_to(6.0)
