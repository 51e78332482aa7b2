"""Which settings carry a re-striping."""

from typing import Any

import pytest

from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.model.errors import ConfigError
from lbg_runtime.runtime.restripe.fitness import insist_on_fit_settings

GROUP = {"name": "orders", "hash_prefix": "h", "hash_count": 8, "queue_count": 4, "provision": "none"}


def settings(group: dict[str, Any], more: dict[str, Any]) -> Settings:
    return parse_settings({"group": {**GROUP, **group}, **more}, "test", {})


def test_fitting_settings_pass() -> None:
    insist_on_fit_settings(settings({}, {}))


@pytest.mark.parametrize(
    ("group", "more", "where"),
    [
        ({"backend": "partitioned"}, {"dispatch": {"missing_key": "error"}}, "group.backend"),
        ({}, {"rebind": {"mode": "cycle"}, "membership": {"mode": "static", "index": 0, "count": 2}}, "rebind.mode"),
        ({"provision": "create_missing"}, {}, "group.provision"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(group: dict[str, Any], more: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        insist_on_fit_settings(settings(group, more))
    assert refused.value.where == where
