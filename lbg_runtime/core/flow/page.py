"""Generate docs/flow-machine.md from the transition table; a test keeps the file current."""

from lbg_runtime.core.flow.table import EVENT_KINDS, TRANSITIONS, FlowState, name_of

_HEAD = """# Flow machine

Made from `lbg_runtime/core/flow/table.py`; do not edit. `make docs` writes it anew.

One machine represents one member's flow on one queue; `lbg_runtime/core/flow/machine.py` has the rules in prose. The
diagram shows the events that change the state, the table all of them. In every state, events of a handle that is gone
are ignored and counted. Any other event that the table does not list for a state cannot happen there; if it does, it
ends the member: better no member than one that handles a key out of order.
"""


def flow_page() -> str:
    """The whole page: a state diagram of the moves, and a table of every event in every state."""
    return "\n".join([_HEAD, "## Moves", "", *_diagram(), "", "## Events", "", *_table(), ""])


def _diagram() -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {FlowState.UNBOUND.value}"]
    for before in FlowState:
        for after in FlowState:
            kinds = [name_of(kind) for kind in EVENT_KINDS if after in TRANSITIONS[before].get(kind, ())]
            if kinds and after is not before:
                lines.append(f"    {before.value} --> {after.value}: {', '.join(kinds)}")
    return [*lines, f"    {FlowState.UNBOUND.value} --> [*]: stopped", "```"]


def _table() -> list[str]:
    lines = [
        "| event | " + " | ".join(state.value for state in FlowState) + " |",
        "|---|" + "---|" * len(FlowState),
    ]
    for kind in EVENT_KINDS:
        cells = [_cell(TRANSITIONS[state].get(kind, frozenset())) for state in FlowState]
        lines.append(f"| {name_of(kind)} | " + " | ".join(cells) + " |")
    return lines


def _cell(after: frozenset[FlowState]) -> str:
    return ", ".join(state.value for state in FlowState if state in after) or "-"
