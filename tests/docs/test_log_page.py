"""The page of log events has every warning and error that the code logs, and nothing that it does not."""

import ast
import re
from collections.abc import Iterator

from lbg_runtime.publisher.hashed import _LOG_EVENTS
from lbg_runtime.runtime.flow.records import ALARMING_NOTES
from tests.docs.pages import DOCS, ROOT

PAGE = DOCS / "log.md"
CODE = ROOT / "lbg_runtime"
LEVELS = ("error", "warning", "info")
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|", re.MULTILINE)

NAMED_BY_CALLS = {
    "core/group/control_plane.py": ("Note", "warning"),
    "core/group/membership.py": ("Note", "warning"),
    "core/group/rebalance.py": ("Note", "info"),
    "runtime/dispatch/key_reports.py": ("_Lines", "warning"),
    "transport/solace/paths.py": ("_is_usable", "warning"),
}
"""Files in which an event has its name from a call of this, and its level."""

NAMED_ELSEWHERE = {
    *NAMED_BY_CALLS,
    "broker/server/server.py",  # who connects and goes: no warning
    "publisher/hashed.py",  # _LOG_EVENTS
    "runtime/control_plane.py",  # notes of core/group
    "runtime/flow/records.py",  # notes of the flow machine, of which ALARMING_NOTES are warnings
}
"""Files with a log call whose first argument is no literal."""

ENDS = {"control_topic_heard", "key_cooled", "key_moves_again", "handler_slow_ended"}
"""Of what these files name, the ends of what is told by a warning: logged at info."""


def _logged() -> dict[str, set[str]]:
    """Event names by level."""
    found: dict[str, set[str]] = {level: set() for level in LEVELS}
    for path in sorted(CODE.rglob("*.py")):
        place, text = path.relative_to(CODE).as_posix(), path.read_text()
        if "_log" not in text and place not in NAMED_BY_CALLS:
            continue
        tree = ast.parse(text)
        loggers = _loggers(tree)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = _name(call.func)
            if called in loggers:
                names = list(_texts(call.args[:1]))
                assert names or place in NAMED_ELSEWHERE, f"{place}:{call.lineno}: an event without a name"
                found[loggers[called]].update(names)
            elif place in NAMED_BY_CALLS and called == NAMED_BY_CALLS[place][0]:
                found[NAMED_BY_CALLS[place][1]].update(_texts(call.args))
    assert found["warning"].issuperset(ENDS)
    found["error"] |= set(_LOG_EVENTS.values())
    found["warning"] = found["warning"] - ENDS | ALARMING_NOTES
    found["info"] |= ENDS
    return found


def _name(called: ast.expr) -> str:
    """`name` or `name.attribute`, as all are that are looked for; otherwise empty."""
    match called:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(name), attribute):
            return f"{name}.{attribute}"
        case _:
            return ""


def _loggers(tree: ast.Module) -> dict[str, str]:
    """What is called to log, with its level; for a name that stands for several of them, the highest."""
    found = {f"_log.{level}": level for level in LEVELS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.IfExp):
            value = ast.unparse(node.value)
            levels = [level for level in LEVELS if f"_log.{level} if" in value or f"else _log.{level}" in value]
            if levels:
                found[node.targets[0].id] = levels[0]
    return found


def _texts(nodes: list[ast.expr]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_every_warning_and_error_is_on_the_page_with_its_level() -> None:
    logged = _logged()
    listed = set(_ROW.findall(PAGE.read_text()))
    told = {(name, level) for level in ("warning", "error") for name in logged[level]}
    assert told - listed == set()
    assert {row for row in listed if row[0] not in logged[row[1]]} == set()


def test_no_event_is_listed_twice() -> None:
    listed = _ROW.findall(PAGE.read_text())
    assert [row for row in set(listed) if listed.count(row) > 1] == []
