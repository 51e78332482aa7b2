from lbg_runtime.model.message import Headers

class Writer:
    def __init__(
        self,
        functions: tuple[int, ...],
        delivery_mode: int,
        tag_bytes: int,
        topic_bytes: int,
        no_headers: Headers,
        /,
    ) -> None: ...
    def write(self, native: int, message: object, tag: int, /) -> bool: ...
