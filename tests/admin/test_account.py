"""The administrator whom settings name, while a secret in a file is replaced."""

from pathlib import Path

import anyio
import pytest

from lbg_runtime.admin.account import account_of, open_semp
from lbg_runtime.broker.engine.engine import Engine
from lbg_runtime.broker.semp.server import SempServer
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.semp_settings import SempSettings
from lbg_runtime.model.errors import SempRefused
from lbg_runtime.semp.address import SempApi
from tests.addresses import OWN_HOST

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 2}


@pytest.mark.real_time
async def test_a_client_shows_what_the_file_of_a_password_has_at_each_request(tmp_path: Path) -> None:
    path = anyio.Path(tmp_path / "password")
    await path.write_text("not yet the new one")
    async with SempServer(Engine(), lambda _: None, OWN_HOST, 0) as server:
        made_of = {"group": GROUP, "semp": {"url": server.url, "password": f"file:{path}"}}
        async with open_semp(parse_settings(made_of, "test", {})) as client:
            with pytest.raises(SempRefused):
                await client.get(SempApi.CONFIG, ("msgVpns", "default"))
            await path.write_text("admin")
            await client.get(SempApi.CONFIG, ("msgVpns", "default"))


@pytest.mark.parametrize(
    ("now", "shown"),
    [("second", "second"), ("second\n", "second"), ("", "first"), ("two\nlines", "first"), (None, "first")],
    ids=["replaced", "a line", "empty", "no token", "gone"],
)
def test_of_a_token_in_a_file_the_newest_is_shown_that_can_be(tmp_path: Path, now: str | None, shown: str) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    semp = SempSettings.model_validate({"url": "https://b:1", "token": f"file:{path}"})
    if now is None:
        path.unlink()
    else:
        path.write_text(now)
    assert account_of(semp).authorization() == f"Bearer {shown}"
