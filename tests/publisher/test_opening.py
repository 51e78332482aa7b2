"""No two publishers share an id."""

import os
import re
import socket

import pytest

from lbg_runtime.publisher.opening import new_publisher_id


def test_an_id_names_the_process_and_can_be_a_file_name_and_a_client_name() -> None:
    publisher_id = new_publisher_id()
    assert f"-{os.getpid()}-" in publisher_id
    assert re.fullmatch(r"[A-Za-z0-9.-]{1,160}", publisher_id)


def test_a_host_name_with_odd_characters_is_made_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "büro/1>")
    assert new_publisher_id().startswith("b-ro-1--")
