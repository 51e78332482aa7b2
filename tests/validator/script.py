"""Runs written by hand, moment by moment: one key, one queue unless told otherwise, times in milliseconds."""

from lbg_runtime.model.record import (
    CloseRecord,
    ConfirmedRecord,
    DispatchRecord,
    FlowRecord,
    JournalHeader,
    LedgerHeader,
    PauseRecord,
    StripesRecord,
    UnconfirmedRecord,
)
from lbg_runtime.validator.findings import Law, Verdict
from tests.validator.run_files import MS, Journal, Ledger, Run, wall_us

BEGIN_NS = 10**12


def at(moment_ms: float) -> int:
    return BEGIN_NS + round(moment_ms * MS)


class Life:
    """Writes one member life's journal; without `close` it is torn."""

    def __init__(self, run: Run, member: str, incarnation: int = 1, *, queue_count: int = 1) -> None:
        header = JournalHeader("run", "g", "h", 4, queue_count, member, incarnation, "host", 1, wall_us(BEGIN_NS))
        self.journal = Journal(header)
        run.journals.append(self.journal)

    def flow(self, event: str, moment_ms: float, epoch: int = 1, cause: str = "", *, queue: int = 0) -> "Life":
        moment = at(moment_ms)
        record = FlowRecord(queue, epoch, event, "primary", cause, wall_us(moment), moment)  # type: ignore[arg-type]
        self.journal.records.append(record)
        return self

    def stripes(
        self,
        event: str,
        moment_ms: float,
        *,
        queue: int = 0,
        shard: int | None = None,
        counts: tuple[int, int] = (1, 2),
        generation: int = 1,
        epoch: int = 1,
    ) -> "Life":
        moment = at(moment_ms)
        record = StripesRecord(queue, epoch, event, generation, *counts, shard, wall_us(moment), moment)  # type: ignore[arg-type]
        self.journal.records.append(record)
        return self

    def pause(self, from_ms: float, to_ms: float) -> "Life":
        self.journal.records.append(PauseRecord(at(from_ms), at(to_ms), wall_us(at(to_ms))))
        return self

    def handle(
        self,
        seq: int | None,
        start_ms: float,
        done_ms: float,
        settle_ms: float | None,
        *,
        epoch: int = 1,
        redelivered: bool = False,
        outcome: str = "accepted",
        queue: int = 0,
        shard: int | None = 0,
        key: str = "k",
        publisher: str | None = "p",
    ) -> "Life":
        start, done = at(start_ms), at(done_ms)
        self.journal.records.append(
            DispatchRecord(
                queue=queue,
                bind_epoch=epoch,
                shard=shard,
                key=key,
                topic="t",
                publisher=publisher,
                seq=seq,
                message_id=None,
                delivery_id=len(self.journal.records) + 1,
                redelivered=redelivered,
                attempts=1,
                local_seq=len(self.journal.records) + 1,
                receive_mono_ns=start,
                start_mono_ns=start,
                done_mono_ns=done,
                t_done=wall_us(done),
                t_settle=None if settle_ms is None else wall_us(at(settle_ms)),
                outcome=outcome,  # type: ignore[arg-type]
                size_bytes=1,
            )
        )
        return self

    def close(self, moment_ms: float, *, clean: bool = True) -> "Life":
        self.journal.close = CloseRecord(0, 0, clean, wall_us(at(moment_ms)))
        return self

    def leave(self, moment_ms: float) -> "Life":
        """Release the queue in good order, and be gone 100 ms later."""
        return self.flow("released", moment_ms, cause="stop").close(moment_ms + 100)


def published(run: Run, last_seq: int, *, unknown: tuple[int, ...] = (), t_first_ms: float = 0, shard: int = 0) -> Run:
    """The run with the ledger of its one publisher."""
    ledger = Ledger(LedgerHeader("run", "g", "h", 4, "crc32", "p", "host", 1, wall_us(BEGIN_NS)))
    ledger.confirmed.append(ConfirmedRecord("k", shard, 1, last_seq, wall_us(at(t_first_ms)), 0))
    ledger.unconfirmed += [UnconfirmedRecord("k", shard, seq, "unknown", "", 0) for seq in unknown]
    ledger.close = CloseRecord(0, 0, True, 0)
    run.ledgers.append(ledger)
    return run


def broken(verdict: Verdict) -> set[Law]:
    """The laws of which something was found."""
    return {law for law, count in verdict.counts.items() if count}
