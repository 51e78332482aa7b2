"""Our table of objects against the vendor's OpenAPI files, in the directory that LBG_SEMP_SPEC_DIR names.

The files are not part of the project; without the variable this module is not collected.
"""

import json
import os
import re
from pathlib import Path

import pytest

from lbg_runtime.broker.engine.settings import QueueSettings
from lbg_runtime.broker.semp import objects
from lbg_runtime.broker.semp.action import _ACTS
from lbg_runtime.broker.semp.grouping import GROUPING_QUEUE_ATTRIBUTES
from lbg_runtime.broker.semp.monitor import _LOOKS
from lbg_runtime.broker.semp.schema import Choice, Number, Text, Threshold
from lbg_runtime.model.ids import QueueName


def read(api):
    (path,) = Path(os.environ["LBG_SEMP_SPEC_DIR"]).glob(f"*{api}*.json")
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def config():
    return read("config")


def path_of(types):
    return "".join(f"/{kind.collection}/{{{'},{'.join(kind.key_names)}}}" for kind in types)


def ways(kind, above=()):
    yield (*above, kind)
    for child in kind.children:
        yield from ways(child, (*above, kind))


WAYS = {path_of(types): types for types in ways(objects.VPN)}


def definition_of(config, path):
    answer = config["paths"][path]["get"]["responses"]["200"]["schema"]["$ref"].rpartition("/")[2]
    data = config["definitions"][answer]["properties"]["data"]["$ref"].rpartition("/")[2]
    return config["definitions"][data]["properties"]


def default_of(prop):
    if "x-default" in prop:
        return prop["x-default"]
    found = re.search(r"default value is `([^`]*)`", prop.get("description", ""))
    return json.loads(found[1]) if found else None


@pytest.mark.parametrize("path", WAYS)
def test_every_kind_of_object_is_where_we_have_it(config, path):
    types = WAYS[path]
    kind = types[-1]
    collection = path.rpartition("/{")[0]
    assert collection in config["paths"]
    verbs = set(config["paths"][path])
    assert verbs == ({"get", "delete", "put", "patch"} if kind.attributes else {"get", "delete"})
    properties = definition_of(config, path)
    for part in kind.key:
        prop = properties[part.name]
        if isinstance(part, Choice):
            assert set(part.words) == set(prop["enum"])
        else:
            assert part.most == prop["maxLength"]
    for attribute in set(kind.attributes) - set(GROUPING_QUEUE_ATTRIBUTES):
        prop = properties[attribute.name]
        if isinstance(attribute, Threshold):
            parts = config["definitions"][prop["$ref"].rpartition("/")[2]]["properties"]
            assert attribute.default == {name: default_of(parts[name]) for name in attribute.default}
            continue
        default = default_of(prop)
        if kind is objects.VPN:
            # What its container sets, or no limit; the kinds of authentication that we do not have are left out.
            if isinstance(attribute, Choice):
                assert set(attribute.words) < set(prop["enum"])
            elif isinstance(attribute, Number):
                assert (attribute.least, attribute.most) == (prop["minimum"], prop["maximum"])
            else:
                assert prop["type"] == "boolean"
            continue
        if default is not None:  # Some are a limit of the machine.
            assert attribute.default == default
        if isinstance(attribute, Number):
            assert (attribute.least, attribute.most) == (prop["minimum"], prop["maximum"])
        if isinstance(attribute, Text):
            assert attribute.most == prop["maxLength"]
        if isinstance(attribute, Choice):
            assert list(attribute.words) == prop["enum"]


@pytest.mark.parametrize("kinds", [kinds for kinds in _LOOKS if "messageGroups" not in kinds])
def test_what_is_seen_has_the_names_of_the_monitor_api(kinds):
    monitor = read("monitor")
    (path,) = [
        path
        for path in monitor["paths"]
        if path.endswith("}") and tuple(part for part in path.split("/")[1:] if "{" not in part) == kinds
    ]
    from lbg_runtime.broker.engine.effects import Published
    from lbg_runtime.broker.engine.engine import Engine

    engine = Engine()
    engine.replays.keep_log_of_size("default", 2_500_000)
    queue = QueueName("q")
    engine.create_queue("default", queue, QueueSettings())
    engine.add_queue_subscription("default", queue, ">")
    client, _ = engine.connect("default", "user", "", "ann")
    engine.bind(client, queue)
    engine.subscribe(client, ">")
    engine.publish(engine.open_publisher(client, "").flow, 1, Published("a", 1, 1))
    names = {"queues": "q", "clients": "ann", "replayLogs": engine.replays.log("default").settings.name}
    above = ("default", names.get(kinds[1], "") if len(kinds) > 1 else "")
    seen = next(iter(_LOOKS[kinds](engine, above[: len(kinds) - 1])))
    ours = {attribute.name for attribute in GROUPING_QUEUE_ATTRIBUTES}
    assert set(seen.look()[0]) - ours <= set(definition_of(monitor, path))


@pytest.mark.parametrize("kinds", [kinds for kinds in _ACTS if not {"messageGroups", "resetMessageGroups"} & {*kinds}])
def test_actions_are_those_of_the_action_api(kinds):
    action = read("action")
    paths = [tuple(part for part in path.split("/")[1:] if "{" not in part) for path in action["paths"]]
    assert kinds in paths
