"""The member's journal: makes the records of what happened, and opens the file for them."""

import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Literal, assert_never

import orjson

from lbg_runtime.core.flow.machine import FlowMachine
from lbg_runtime.core.restripe.news import PlanReached, ShardLeft, StripesEnded, StripesFinished, StripesNews
from lbg_runtime.journal.writer import RecordSink, RecordWriter
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.model.group import GroupShape
from lbg_runtime.model.ids import Epoch, MemberId, QueueName
from lbg_runtime.model.record import (
    FILE_SUFFIXES,
    LARGEST_NUMBER,
    DispatchRecord,
    FlowRecord,
    JournalHeader,
    OwnerRecord,
    PauseRecord,
    StatusRecord,
    StripesRecord,
)
from lbg_runtime.runtime.clock import wall_us
from lbg_runtime.runtime.meters import MemberMeters
from lbg_runtime.runtime.runners.handling import Handling

STANDSTILL_NS = 3_000_000_000
"""If nothing was recorded for longer than this, the member stood still: it records the status of each queue every
second."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Only Linux has it; starts of other hosts are told apart only by the hosts' names."""

FlowEventName = Literal["bound", "active", "inactive", "draining", "released", "down"]


class MemberJournal:
    """Called on the loop, by the flow runners and others. Without a writer nothing is written, without meters nothing
    is counted."""

    def __init__(self, writer: RecordSink | None, incarnation: int, meters: MemberMeters | None = None) -> None:
        self.incarnation = incarnation
        """The number of this life: larger than those of all earlier lives, as far as the member's journals and the
        clock show."""
        self.meters = meters
        self._writer = writer
        self._seen_ns = monotonic_ns()
        """When something was last written."""

    @property
    def dropped(self) -> int:
        """Records that could not be written."""
        return 0 if self._writer is None else self._writer.dropped

    def handled(self, queue_index: int, handling: Handling, *, is_settled: bool) -> None:
        """Record that a delivery ended. `is_settled`: its settlement is handed over right after the next `flush`."""
        if self.meters is not None:
            self.meters.ended(handling, is_settled)
        if self._writer is None or handling.attempts == 0:
            return
        delivery = handling.delivery
        message = delivery.message
        number = message.key_sequence
        if number is not None and number > LARGEST_NUMBER:
            # No publisher of ours makes such a number, and a reader would take the whole record for damaged.
            number = None
        now_ns = self._note_pause(self._writer)
        self._writer.write(
            DispatchRecord(
                queue=queue_index,
                bind_epoch=delivery.epoch,
                shard=handling.shard,
                key=handling.key,
                topic=handling.topic,
                publisher=message.publisher_id,
                seq=number,
                message_id=message.message_id,
                delivery_id=delivery.delivery_id,
                redelivered=delivery.redelivered,
                attempts=handling.attempts,
                local_seq=handling.local_seq,
                receive_mono_ns=delivery.received_at_ns,
                start_mono_ns=handling.start_mono_ns,
                done_mono_ns=handling.done_mono_ns,
                t_done=wall_us() - (now_ns - handling.done_mono_ns) // 1_000,
                t_settle=wall_us() if is_settled else None,
                outcome="cancelled" if handling.outcome is None else handling.outcome.value,
                size_bytes=len(message.payload),
            )
        )

    def flow_changed(self, queue_index: int, machine: FlowMachine, event: FlowEventName, cause: str) -> None:
        """Record a change of a flow; `cause` as in `FlowRecord`."""
        if self._writer is None:
            return
        now_ns = self._note_pause(self._writer)
        self._writer.write(
            FlowRecord(
                queue=queue_index,
                bind_epoch=machine.epoch,
                event=event,
                role=machine.place.role.value,
                cause=cause,
                t=wall_us(),
                mono_ns=now_ns,
            )
        )

    def stripes(self, queue_index: int, epoch: Epoch, news: StripesNews) -> None:
        """Record what one of the member's queues said about a re-striping."""
        if self._writer is None:
            return
        shard: int | None = None
        event: Literal["planned", "left", "finished"]
        match news:
            case PlanReached(plan):
                event, generation, from_count, to_count = "planned", plan.generation, plan.from_count, plan.to_count
            case ShardLeft(plan, shard):
                event, generation, from_count, to_count = "left", plan.generation, plan.from_count, plan.to_count
            case StripesFinished(generation, from_count, to_count):
                event = "finished"
            case StripesEnded():
                return
            case _:
                assert_never(news)
        self._writer.write(
            StripesRecord(
                queue=queue_index,
                bind_epoch=epoch,
                event=event,
                generation=generation,
                from_count=from_count,
                to_count=to_count,
                shard=shard,
                t=wall_us(),
                mono_ns=monotonic_ns(),
            )
        )

    def owner_changed(self, record: OwnerRecord) -> None:
        """Record that a queue was taken or given up."""
        if self.meters is not None:
            self.meters.owner_changed(record)
        if self._writer is not None:
            self._writer.write(record)

    def status(self, queue_index: int, machine: FlowMachine, handled: int) -> None:
        """Record the state of a flow, about once a second."""
        if self._writer is None:
            return
        self._note_pause(self._writer)
        self._writer.write(
            StatusRecord(
                queue=queue_index,
                bind_epoch=machine.epoch,
                role=machine.place.role.value,
                state=machine.state.value,
                in_flight=machine.in_flight,
                handled=handled,
                t=wall_us(),
            )
        )

    def _note_pause(self, writer: RecordSink) -> int:
        """Record a pause if the member stood still until now; return the time of the next record."""
        now_ns = monotonic_ns()
        if now_ns - self._seen_ns > STANDSTILL_NS:
            writer.write(PauseRecord(self._seen_ns, now_ns, wall_us()))
        self._seen_ns = now_ns
        return now_ns

    def flush(self) -> None:
        """When this returns, everything recorded is with the operating system, or counted as dropped."""
        if self._writer is not None:
            self._writer.flush()

    def close(self, *, clean: bool) -> None:
        """Write the last line. `clean`: whether the member left with everything drained."""
        if self._writer is not None:
            self._writer.close(clean=clean)


def open_journal(
    folder: Path | None,
    shape: GroupShape,
    member: MemberId,
    run_id: str,
    meters: MemberMeters | None = None,
    backend: Literal["exclusive", "partitioned"] = "exclusive",
) -> MemberJournal:
    """Begin the journal of this life of the member; raises `ConfigError` if its file cannot be created."""
    if folder is None:
        return MemberJournal(None, wall_us(), meters)
    started_at_us = wall_us()
    header = JournalHeader(
        run_id=run_id,
        group=shape.name,
        hash_prefix=shape.hash_prefix,
        hash_count=shape.hash_count,
        queue_count=shape.queue_count,
        member=member,
        incarnation=started_at_us,
        host=socket.gethostname(),
        pid=os.getpid(),
        t_start=started_at_us,
        backend=backend,
        boot_id=_boot_id(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer, incarnation = _create(folder, header)
    except OSError as error:
        found = f"{folder}: {error.strerror}"
        raise ConfigError("ops.journal.path", found, "a directory that can be written to") from None
    return MemberJournal(writer, incarnation, meters)


def _boot_id() -> str | None:
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def _create(folder: Path, header: JournalHeader) -> tuple[RecordWriter, int]:
    """Create the file of this life, and return its incarnation: the header's or, if the clock went back, a larger one
    than any earlier life's."""
    member, incarnation = header.member, header.incarnation
    suffix = FILE_SUFFIXES["journal"]
    # Our clocks give no more digits than this, and other members and the reader of journals take no larger number.
    pattern = re.compile(rf"{re.escape(member)}-([0-9]{{1,17}}){re.escape(suffix)}")
    earlier = [int(match[1]) for match in map(pattern.fullmatch, os.listdir(folder)) if match]
    incarnation = max([incarnation, *earlier])
    while True:
        try:
            path = folder / f"{member}-{incarnation}{suffix}"
            return RecordWriter(path, first=replace(header, incarnation=incarnation)), incarnation
        except FileExistsError:
            # The clock went back, or two members with the same name started within a microsecond.
            incarnation += 1


def note_of(handling: Handling, queue: QueueName, member: MemberId) -> bytes:
    """What `lbg validate --live` is told about one handled message, as JSON. `queue`: the message's own queue, also if
    it was parked."""
    message = handling.delivery.message
    return orjson.dumps(
        {
            "member": member,
            "queue": queue,
            "shard": handling.shard,
            "key": handling.key,
            "seq": message.key_sequence,
            "publisher": message.publisher_id,
            "topic": handling.topic,
            "redelivered": handling.delivery.redelivered,
        }
    )
