"""The timetable on its own: whatever is set, each part is called at the time it has, once."""

from hypothesis import given
from hypothesis import strategies as st

from lbg_runtime.broker.engine.effects import Effect
from lbg_runtime.broker.engine.timetable import Timetable
from tests.broker.deadlines import call_due


class Part:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def on_deadline(self) -> list[Effect]:
        self.calls += 1
        return []


@given(
    deeds=st.lists(
        # A part and its time, often one that it had before; or time that passes.
        st.tuples(st.integers(0, 3), st.none() | st.integers(0, 9)) | st.integers(0, 4),
        max_size=300,
    )
)
def test_every_part_is_called_once_at_the_time_that_it_has(deeds: list[tuple[int, int | None] | int]) -> None:
    now_ms = 0
    table = Timetable(lambda: now_ms)
    parts = [Part() for _ in range(4)]
    due_ms: dict[int, int] = {}
    calls = [0] * 4
    for deed in deeds:
        if isinstance(deed, int):
            now_ms += deed
            call_due(table)
            for number in [number for number, at_ms in due_ms.items() if at_ms <= now_ms]:
                del due_ms[number]
                calls[number] += 1
        else:
            number, delay_ms = deed
            table.set(parts[number], None if delay_ms is None else now_ms + delay_ms)
            due_ms.pop(number, None)
            if delay_ms is not None:
                due_ms[number] = now_ms + delay_ms
        assert table.next_ms == min(due_ms.values(), default=None)
        assert [part.calls for part in parts] == calls


class Eager(Part):
    """Is due again as soon as it has been called."""

    def __init__(self, table: Timetable) -> None:
        super().__init__()
        self.table = table

    def on_deadline(self) -> list[Effect]:
        self.table.set(self, 0)
        return super().on_deadline()


def test_a_part_that_is_due_again_at_once_is_called_once_at_a_time_and_keeps_nobody_waiting() -> None:
    table = Timetable(lambda: 9)
    eager, patient = Eager(table), Part()
    table.set(eager, 1)
    table.set(patient, 5)
    call_due(table)
    assert (eager.calls, patient.calls) == (1, 1)
    assert table.next_ms == 0
