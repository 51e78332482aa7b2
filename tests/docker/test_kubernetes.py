"""The manifests: that their parts fit each other, the commands, the settings, and what the real servers answer."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lbg_runtime.cli.main import command_line
from lbg_runtime.config.listen_address import ListenAddress
from lbg_runtime.config.load import parse_settings
from lbg_runtime.config.settings import Settings
from lbg_runtime.core.flow.table import FlowState
from lbg_runtime.model.version import VERSION
from lbg_runtime.status.server import StatusServer
from tests.docker.files import KUBERNETES, kustomization, manifests
from tests.docker.test_image import LEAVES_WITHIN_S
from tests.status.asking import ShownMember, ask, flow, member

NAMESPACE = kustomization()["namespace"]


def named(kind: str, name: str) -> dict[str, Any]:
    (found,) = [one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def templates() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Everything that runs pods, with the template of these."""
    for one in manifests():
        if one["kind"] in ("Job", "StatefulSet", "Deployment"):
            yield one, one["spec"]["template"]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The one container of each, with its pod."""
    for _, template in templates():
        (container,) = template["spec"]["containers"]
        yield container, template["spec"]


@pytest.fixture
def settings(tmp_path) -> Settings:
    for name in ("password", "status-token"):
        (tmp_path / name).write_text("for-tests-only\n")
    document = yaml.safe_load((KUBERNETES / "config.yaml").read_text())
    return parse_settings(document, "config.yaml", {"LBG_SECRETS": str(tmp_path)})


def test_every_file_is_applied_and_no_secret_is_in_one() -> None:
    names = {path.name for path in KUBERNETES.iterdir()}
    generated = {name for one in kustomization()["configMapGenerator"] for name in one["files"]}
    assert names == {"kustomization.yaml", *kustomization()["resources"], *generated}
    assert {one["kind"] for one in manifests()}.isdisjoint({"Secret", "Role", "ClusterRole", "ServiceAccount"})


def test_pods_have_no_right_that_they_do_not_need() -> None:
    for container, pod in containers():
        assert not pod["automountServiceAccountToken"]
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"},
        }  # fmt: skip
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["limits"]["memory"]
        assert {"name": container["image"], "newTag": VERSION} in kustomization()["images"]


def test_what_is_mounted_is_there() -> None:
    (config,) = [one["name"] for one in kustomization()["configMapGenerator"]]
    told = (KUBERNETES / "kustomization.yaml").read_text()
    assert "generic orders-secrets" in told
    secrets = set(re.findall(r"--from-literal=([\w-]+)=", told))
    accounts = {"member-password", "publisher-password", "conductor-password"}
    assert secrets == accounts | {"status-token", "semp-password"}
    for container, pod in containers():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == set(volumes)
        assert volumes["config"]["configMap"]["name"] == config
        assert mounts["config"] == "/etc/lbg"
        assert f"${{LBG_SECRETS:{mounts['secrets']}}}" in (KUBERNETES / "config.yaml").read_text()
        assert volumes["secrets"]["secret"]["secretName"] == "orders-secrets"
        assert {item["key"] for item in volumes["secrets"]["secret"]["items"]} <= secrets
        asked = [one.get("valueFrom", {}).get("secretKeyRef") for one in container.get("env", ())]
        assert all(one is None or (one["name"], one["key"] in secrets) == ("orders-secrets", True) for one in asked)


def test_only_who_administers_has_the_administrators_password() -> None:
    having = {
        owner["metadata"]["name"]
        for owner, template in templates()
        for one in template["spec"]["containers"][0].get("env", ())
        if one["name"] == "LBG_SEMP_PASSWORD"
    }
    assert having == {"orders-group", "orders-page"}


def test_selectors_find_what_they_are_for() -> None:
    pods = {owner["metadata"]["name"]: template["metadata"]["labels"] for owner, template in templates()}
    for owner, template in templates():
        if owner["kind"] != "Job":
            assert owner["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert named("StatefulSet", "orders-member")["spec"]["serviceName"] == "orders-members"
    assert named("Service", "orders-members")["spec"]["selector"] == pods["orders-member"]
    assert named("Service", "orders-page")["spec"]["selector"] == pods["orders-page"]
    budget = named("PodDisruptionBudget", "orders-member")["spec"]
    assert budget["selector"]["matchLabels"] == pods["orders-member"]


def test_every_command_is_one() -> None:
    for container, _ in containers():
        name, *options = container["args"]
        # Options are read before help is printed: an unknown one is an error.
        told = CliRunner().invoke(command_line(name), [name, *options, "--help"])
        assert told.exit_code == 0, told.output


def test_a_member_has_time_to_leave_in_order_and_a_name_of_its_own(settings) -> None:
    template = named("StatefulSet", "orders-member")["spec"]["template"]["spec"]
    assert template["terminationGracePeriodSeconds"] > settings.rebind.drain_timeout_ms / 1_000 + LEAVES_WITHIN_S
    (name,) = [one["valueFrom"] for one in template["containers"][0]["env"] if one["name"] == "LBG_MEMBER_ID"]
    assert name == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert settings.membership.id is None, "what the environment says wins anyway, and nobody shares a name"


@pytest.mark.real_time
async def test_probes_ask_what_a_member_answers_to_whoever_asks(settings) -> None:
    (container,) = named("StatefulSet", "orders-member")["spec"]["template"]["spec"]["containers"]
    assert container["ports"] == [{"name": "status", "containerPort": settings.ops.status.port}]
    (port,) = named("Service", "orders-members")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (settings.ops.status.port, "status")
    probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in probes.values()} == {"status"}
    async with StatusServer(ListenAddress("127.0.0.1", 0), settings.ops.status_token.get_secret_value()) as server:
        server.show(ShownMember(member(flow(0, FlowState.BINDING))))
        found = {name: (await ask(server.address.port, probe["path"])).status for name, probe in probes.items()}
    assert found == {"startup": 200, "liveness": 200, "readiness": 503}


def test_the_autoscaler_finds_the_page_and_knows_its_limits(settings) -> None:
    spec = named("ScaledObject", "orders-member")["spec"]
    target = named(spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
    assert "replicas" not in target["spec"], "two would decide how many there are"
    assert (
        spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"] == settings.group.queue_count
    )
    (trigger,) = spec["triggers"]
    host, port, path = re.fullmatch(r"http://([\w.-]+):(\d+)(/\S+)", trigger["metadata"]["url"]).groups()
    service, namespace, *_ = host.split(".")
    assert (namespace, path) == (NAMESPACE, "/v1/autoscale")
    (shown,) = named("Service", service)["spec"]["ports"]
    assert shown["port"] == int(port)
    (page,) = named("Deployment", "orders-page")["spec"]["template"]["spec"]["containers"]
    assert page["ports"] == [{"name": shown["targetPort"], "containerPort": int(port)}]
    assert page["args"][-2:] == ["--listen", f"0.0.0.0:{port}"]
    assert {page[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")} == {"/"}, "for everybody"
    # What it is told there is read in test_compose.py, from a running group.
    assert trigger["metadata"]["authMode"] == "bearer"
    (token,) = named("TriggerAuthentication", trigger["authenticationRef"]["name"])["spec"]["secretTargetRef"]
    assert token == {"parameter": "token", "name": "orders-secrets", "key": "status-token"}
