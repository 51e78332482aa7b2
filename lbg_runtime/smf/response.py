"""Answers: the response parameter, and the frame that answers another."""

from dataclasses import dataclass
from typing import Self

from lbg_runtime.model.errors import BrokerRefusal, ProtocolError
from lbg_runtime.smf.frame import Frame, LightKind, Parameter, ParameterKind, Protocol, encode_frame


@dataclass(frozen=True, slots=True)
class Response:
    """A code and its text. Clients match both, the text case-sensitively."""

    code: int
    text: str

    @classmethod
    def of(cls, refusal: BrokerRefusal) -> Self:
        """What a client is told of a refusal."""
        return cls(refusal.code, refusal.text)


OK = Response(200, "OK")


def answer(protocol: Protocol, body: bytes, response: Response | None, tag: bytes | None = None) -> bytes:
    """The bytes of a broker's frame; `tag` is that of the frame that it answers."""
    parameters = []
    if tag is not None:
        parameters.append(Parameter(LightKind.CORRELATION_TAG, tag, light=True))
    if response is not None:
        parameters.append(Parameter(ParameterKind.RESPONSE, response.code.to_bytes(4, "big") + response.text.encode()))
    return encode_frame(Frame(protocol, tuple(parameters), body))


def response_of(frame: Frame) -> Response | None:
    """The response that a frame carries, or None; raises `ProtocolError`."""
    value = frame.find(ParameterKind.RESPONSE)
    if value is None:
        return None
    if len(value) < 4:
        raise ProtocolError("a response without its code")
    return Response(int.from_bytes(value[:4], "big"), value[4:].decode("ascii", "replace"))
