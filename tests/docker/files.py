"""The files in docker/, read as their tools read them, as far as they need it."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
KUBERNETES = DOCKER / "kubernetes"

LBG = "/opt/lbg/bin/lbg"
PYTHON = "/opt/lbg/bin/python"

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def instructions(path: Path = DOCKER / "Dockerfile") -> list[tuple[str, str]]:
    """Every instruction with its arguments, its lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.strip().partition(" ") for line in joined.split("\n")) if word
    ]


def in_exec_form(arguments: str) -> list[str]:
    """The words of a command without a shell; fails for one with."""
    words = json.loads(arguments)
    assert isinstance(words, list)
    return words


def compose(*names: str) -> dict[str, Any]:
    """The file, or several laid over each other, the last one on top; variables have their defaults."""
    merged: dict[str, Any] = {}
    for name in names:
        text = _VARIABLE.sub(lambda match: match[2], (DOCKER / name).read_text())
        merged = _laid_over(merged, yaml.safe_load(text))
    return merged


def _laid_over(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        names = {**below, **above}
        return {
            name: _laid_over(below[name], above[name], name) if name in below and name in above else names[name]
            for name in names
        }
    if isinstance(below, list) and isinstance(above, list) and key not in ("command", "entrypoint", "test"):
        return [*below, *(each for each in above if each not in below)]
    return above


def seconds(text: str) -> float:
    """Of a duration in a compose file, `1m30s`."""
    parts = re.findall(r"(\d+)(ms|s|m|h)", text)
    assert "".join(number + unit for number, unit in parts) == text, text
    return sum(int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3_600}[unit] for number, unit in parts)


def manifests() -> list[dict[str, Any]]:
    """Every object of the manifests that the kustomization names."""
    names = kustomization()["resources"]
    return [each for name in names for each in yaml.safe_load_all((KUBERNETES / name).read_text())]


def kustomization() -> dict[str, Any]:
    """What is applied together."""
    loaded = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def words(text: str) -> list[str]:
    """As a shell splits a line."""
    return shlex.split(text)
