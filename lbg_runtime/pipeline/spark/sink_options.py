"""The options of `df.write.format("lbg")`; a wrong one gives a one-line error that names it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lbg_runtime.model.errors import UserError
from lbg_runtime.pipeline.spark.option_names import check_option_names

_MAX_IN_FLIGHT = 1000
_ACK_TIMEOUT = "30s"

_NAMES = (
    *("config", "keyColumn", "payloadColumn", "topic", "topicColumn", "orderColumn"),
    *("ackTimeout", "maxInFlight", "ledger"),
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one sink, checked against the columns it is given."""

    config: Path
    """Settings file of the group: how keys are hashed, and how to reach the broker. Read on every executor too."""
    key_column: str
    payload_column: str
    topic: str | None
    """Without hash prefix and shard; None if each row has its own."""
    topic_column: str | None
    order_column: str | None
    """The column by which a partition is sorted before it is published; None to take the rows as they come."""
    ack_timeout_ms: int
    """How long to wait for the oldest unconfirmed message of a task."""
    max_in_flight: int
    ledger: Path | None
    """Folder for the record of what was confirmed, one file for each task of a batch; None to keep none."""


def read_sink_options(options: Mapping[str, str], columns: Mapping[str, str]) -> SinkOptions:
    """The options of a sink for a frame with these columns, by their Spark types. Raises `UserError`.

    Option names are case-insensitive, as all of Spark's are. Options of Spark itself are ignored.
    """
    from lbg_runtime.config.duration import DURATION_FORM, parse_duration_ms

    check_option_names(options, _NAMES)
    given = {name.lower(): value for name, value in options.items()}
    values = {name: given.get(name.lower()) for name in _NAMES}
    topic, topic_column = values["topic"], values["topicColumn"]
    if (topic is None) == (topic_column is None):
        found = "neither" if topic is None else "both"
        raise UserError("options topic, topicColumn", found, "one of the two; a topic without hash prefix and shard")
    try:
        ack_timeout_ms = parse_duration_ms(values["ackTimeout"] or _ACK_TIMEOUT)
    except ValueError:
        raise UserError("option ackTimeout", repr(values["ackTimeout"]), DURATION_FORM) from None
    if not ack_timeout_ms:
        raise UserError("option ackTimeout", repr(values["ackTimeout"]), "a duration above 0")
    in_flight = values["maxInFlight"] or str(_MAX_IN_FLIGHT)
    # Python refuses to read thousands of digits.
    if not in_flight.isdecimal() or len(in_flight) > 4 or not 1 <= int(in_flight) <= _MAX_IN_FLIGHT:
        raise UserError("option maxInFlight", repr(in_flight), f"a number from 1 to {_MAX_IN_FLIGHT}")
    found_options = SinkOptions(
        config=Path(values["config"] or "config.yaml").absolute(),
        key_column=values["keyColumn"] or "key",
        payload_column=values["payloadColumn"] or "payload",
        topic=topic,
        topic_column=topic_column,
        order_column=values["orderColumn"],
        ack_timeout_ms=ack_timeout_ms,
        max_in_flight=int(in_flight),
        ledger=None if values["ledger"] is None else Path(values["ledger"]).absolute(),
    )
    _check_column("keyColumn", found_options.key_column, columns, ("string",))
    _check_column("payloadColumn", found_options.payload_column, columns, ("string", "binary"))
    if topic_column is not None:
        _check_column("topicColumn", topic_column, columns, ("string",))
    if found_options.order_column is not None:
        _check_column("orderColumn", found_options.order_column, columns, ())
    return found_options


def _check_column(option: str, column: str, columns: Mapping[str, str], types: tuple[str, ...]) -> None:
    if column not in columns:
        raise UserError(f"option {option}", f"no column {column!r}", f"one of {', '.join(columns)}")
    if types and columns[column] not in types:
        raise UserError(f"option {option}, column {column!r}", columns[column], f"a column of {' or '.join(types)}")
