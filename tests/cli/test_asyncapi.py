"""`lbg asyncapi` on the handlers as shipped, as YAML and as JSON."""

import json
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]


def test_both_forms_say_the_same_of_the_handlers_as_shipped(lbg):
    told = json.loads(lbg(ROOT, "asyncapi", "--json", "--app-version", "3.1").stdout)
    assert yaml.safe_load(lbg(ROOT, "asyncapi", "--app-version", "3.1").stdout) == told
    assert told["info"]["version"] == "3.1"
    assert [channel["address"] for channel in told["channels"].values()] == ["orders-hash/{shard}/orders/{rest}"]


def test_settings_without_handlers_are_a_mistake_of_one_line(lbg, tmp_path):
    (tmp_path / "config.yaml").write_text("group: {name: o, hash_prefix: h, hash_count: 4, queue_count: 1}\n")
    said = lbg(tmp_path, "asyncapi")
    assert (said.returncode, said.stdout) == (2, "")
    assert said.stderr.splitlines()[-1].startswith("lbg: handlers: none; expected modules")
