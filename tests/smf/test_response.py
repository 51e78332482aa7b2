import pytest

from lbg_runtime.model.errors import ProtocolError
from lbg_runtime.smf.frame import Frame, Parameter, ParameterKind, Protocol, decode_frame
from lbg_runtime.smf.response import Response, answer, response_of


@pytest.mark.parametrize("tag", [None, b"\0\0\1"])
@pytest.mark.parametrize("response", [None, Response(0x01020304, "Spool Over Quota"), Response(200, "")])
def test_an_answer_says_what_it_answers_and_how_it_went(tag: bytes | None, response: Response | None) -> None:
    frame = decode_frame(answer(Protocol.ASSURED_CTRL, b"body", response, tag))
    assert (frame.tag, response_of(frame), frame.body) == (tag, response, b"body")


def test_a_response_without_its_code_is_refused() -> None:
    frame = Frame(Protocol.ASSURED_CTRL, (Parameter(ParameterKind.RESPONSE, b"\0\0\1"),))
    with pytest.raises(ProtocolError, match="without its code"):
        response_of(frame)
