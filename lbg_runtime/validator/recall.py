"""Witnesses that slices have forgotten: to which messages they belong, and how findings get them back.

A finding on a repeat rests on the handling before it. In slices, that handling may be long gone when the repeat comes;
the finding then names the message alone, until a caller that can read the records again supplies its handlings.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lbg_runtime.validator.findings import Examination, Finding, Witness, first_of_each_law
from lbg_runtime.validator.schema import RunTables

_MESSAGE = ["publisher", "key", "seq"]


def is_forgotten(witness: Witness) -> bool:
    """Whether the witness is only the name of a message."""
    return witness.record == "dispatch" and witness.member is None


def forgotten_messages(examination: Examination) -> pa.Table:
    """The messages for which a finding lacks a witness: publisher, key, seq. Few, as findings with witnesses are."""
    names = {
        (witness.publisher, witness.key, witness.seq)
        for finding in examination.findings
        for witness in finding.witnesses
        if is_forgotten(witness)
    }
    rows = [dict(zip(_MESSAGE, name, strict=True)) for name in sorted(names, key=repr)]
    return pa.Table.from_pylist(
        rows, pa.schema([("publisher", pa.string()), ("key", pa.string()), ("seq", pa.int64())])
    )


def handlings_of(dispatches: pa.Table, messages: pa.Table) -> pa.Table:
    """The dispatches of these messages."""
    among = pc.is_in(dispatches.column("seq"), value_set=messages.column("seq"))
    found = dispatches.filter(among).join(messages, _MESSAGE, join_type="left semi")
    return found.select(dispatches.schema.names).cast(dispatches.schema)


def without_faults(tables: RunTables, dispatches: pa.Table) -> RunTables:
    """These handlings alone, as of a run in which nothing failed, so that every repeat among them is a finding.

    What a fault may have hidden is known only with all handlings of its flow, and was judged before.
    """
    journals = tables.journals
    for name, value in (("torn", False), ("clean", True)):
        place, column = journals.schema.get_field_index(name), pa.repeat(value, journals.num_rows)
        journals = journals.set_column(place, journals.schema.field(name), column)
    nothing = {name: getattr(tables, name).slice(0, 0) for name in ("flows", "confirmed", "unconfirmed")}
    return replace(tables, dispatches=dispatches, journals=journals, **nothing)


def recalled(examination: Examination, again: Iterable[Examination]) -> Examination:
    """The examination with its forgotten witnesses restored from `again`: one for each of those messages, of all its
    handlings, `without_faults`. Those of all together could be more than findings are kept."""
    findings = (finding for one in again for finding in one.findings)
    known = {(finding.law, finding.witnesses[-1]): finding for finding in findings if finding.witnesses}

    def whole(finding: Finding) -> Finding:
        if not any(map(is_forgotten, finding.witnesses)):
            return finding
        return known.get((finding.law, finding.witnesses[-1]), finding)

    return replace(examination, findings=first_of_each_law(map(whole, examination.findings)))
