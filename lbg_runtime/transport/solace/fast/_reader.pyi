from collections.abc import Callable
from typing import Any

from lbg_runtime.model.ids import Epoch, QueueName
from lbg_runtime.model.message import Delivery, Headers, Message, PropertyValue

class Reader:
    def __init__(
        self,
        functions: tuple[int, ...],
        span_id: int,
        field_size: int,
        message_type: type[Message],
        delivery_type: type[Delivery],
        publisher_property: str,
        no_headers: Headers,
        default_priority: int,
        add_property: Callable[[dict[str, PropertyValue], str, int], None],
        add_context: Callable[[dict[str, PropertyValue], int], None],
        foreign_payload: Callable[[int, bytes | None, bool], bytes],
        headers_of: Callable[[str | None, str | None, int | None, int], Headers],
        failed: Callable[[int, str], None],
        unreadable: Callable[[Any, int | None], None],
        /,
    ) -> None: ...
    def read(self, message: int, queue: QueueName, epoch: Epoch, /) -> Delivery: ...
