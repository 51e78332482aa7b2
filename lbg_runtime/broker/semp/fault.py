"""How requests fail: always with a SEMP error in the answer."""

from lbg_runtime.model.errors import LbgError
from lbg_runtime.model.semp_code import SempCode


class SempFault(LbgError):
    """The request is refused; becomes `meta.error` of an answer with HTTP 400."""

    def __init__(self, code: SempCode, description: str) -> None:
        super().__init__(f"{code.name}: {description}")
        self.code = code
        self.description = description
