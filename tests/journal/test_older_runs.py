"""A run of the code of 22 November gets its verdict today, also beside journals of today."""

from pathlib import Path

import pytest

from lbg_runtime.journal.reader import read_run
from lbg_runtime.validator.findings import Law, VerdictKind
from lbg_runtime.validator.judge import validate

JOURNAL = """\
{"run_id":"","group":"orders","hash_prefix":"h","hash_count":48,"queue_count":1,"member":"m0","incarnation":7,\
"host":"vm","pid":28608,"t_start":1796007781327265,"kind":"journal","schema":1,"backend":"exclusive",\
"boot_id":"611abeec","is_whole":true }
{"from_mono_ns":48225238828036,"to_mono_ns":48228274962937,"t":1796007784363877,"kind":"pause"}
{"queue":0,"bind_epoch":0,"role":"secondary","state":"unbound","in_flight":0,"handled":0,"t":1796007784400000,\
"kind":"status"}
{"queue":0,"bind_epoch":1,"event":"bound","role":"primary","cause":"","t":1796007786814987,"mono_ns":48230726069204,\
"kind":"flow"}
{"queue":0,"bind_epoch":1,"event":"active","role":"primary","cause":"","t":1796007786815144,"mono_ns":48230726237598,\
"kind":"flow"}
{"queue":0,"bind_epoch":1,"event":"taken","move_id":null,"from_member":null,"to_member":"m0","cause":"elected",\
"decided_by":"broker","is_leaving":false,"drain_ms":null,"held_ms":null,"in_flight":0,"t":1796007786815213,\
"mono_ns":48230726308644,"kind":"owner"}
{"queue":0,"bind_epoch":1,"shard":23,"key":"1","topic":"orders/new","publisher":"p","seq":1,"message_id":"p-1",\
"delivery_id":1,"redelivered":false,"attempts":1,"local_seq":1,"receive_mono_ns":48239931183997,\
"start_mono_ns":48239931348617,"done_mono_ns":48239935671792,"t_done":1796007796024610,"t_settle":1796007796024712,\
"outcome":"accepted","size_bytes":22,"kind":"dispatch"}
{"queue":0,"bind_epoch":1,"shard":23,"key":"1","topic":"orders/new","publisher":"p","seq":2,"message_id":"p-2",\
"delivery_id":2,"redelivered":false,"attempts":1,"local_seq":2,"receive_mono_ns":48240434192022,\
"start_mono_ns":48240434296240,"done_mono_ns":48240436568240,"t_done":1796007796525489,"t_settle":1796007796525565,\
"outcome":"accepted","size_bytes":22,"kind":"dispatch"}
{"queue":0,"bind_epoch":1,"event":"draining","role":"secondary","cause":"stop","t":1796007801200135,\
"mono_ns":48245111223428,"kind":"flow"}
{"queue":0,"bind_epoch":1,"event":"released","role":"secondary","cause":"stop","t":1796007801277060,\
"mono_ns":48245188146568,"kind":"flow"}
{"queue":0,"bind_epoch":1,"event":"given","move_id":null,"from_member":"m0","to_member":null,"cause":"stop",\
"decided_by":"stop","is_leaving":true,"drain_ms":65,"held_ms":14462,"in_flight":0,"t":1796007801277227,\
"mono_ns":48245188322777,"kind":"owner"}
{"written":11,"dropped":0,"clean":true,"t":1796007801397295,"kind":"close"}
"""
LEDGER = """\
{"run_id":"","group":"orders","hash_prefix":"h","hash_count":48,"hash_function":"crc32","publisher":"p","host":"vm",\
"pid":29159,"t_start":1796007796019078,"kind":"ledger","schema":1,"is_whole":true }
{"key":"1","shard":23,"first_seq":1,"last_seq":1,"t_first":1796007796020418,"t_last":1796007796020418,\
"kind":"confirmed"}
{"key":"1","shard":23,"first_seq":2,"last_seq":2,"t_first":1796007796523076,"t_last":1796007796523076,\
"kind":"confirmed"}
{"written":3,"dropped":0,"clean":true,"t":1796007797420894,"kind":"close"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "m0-7.member.jsonl").write_text(JOURNAL)
    (tmp_path / "p.ledger.jsonl").write_text(LEDGER)
    return tmp_path


def test_a_run_of_then_is_valid(folder: Path) -> None:
    verdict = validate(read_run(folder))
    assert (verdict.kind, verdict.reasons) == (VerdictKind.VALID, ())
    assert verdict.accounts.handled_first == 2


def test_what_was_lost_then_is_found(folder: Path) -> None:
    path = folder / "m0-7.member.jsonl"
    lines = [line for line in JOURNAL.splitlines(keepends=True) if '"seq":2' not in line]
    path.write_text("".join(lines).replace('"written":11', '"written":10'))
    verdict = validate(read_run(folder))
    assert verdict.kind is VerdictKind.INVALID
    assert verdict.counts[Law.LOSS] == 1
