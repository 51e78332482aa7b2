"""What `pyproject.toml` says of the package is so: what is in it beside modules, and which versions it works with."""

import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PINNED = {
    canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
    for pin in map(Requirement, (ROOT / "constraints.txt").read_text().splitlines())
    if pin.marker is None or pin.marker.evaluate()
}
REQUIREMENTS = sorted(
    {*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)}
)


def test_a_wheel_has_every_file_of_the_package() -> None:
    patterns = ("*.py", "*.c", *PYPROJECT["tool"]["setuptools"]["package-data"]["*"])
    files = [
        path for path in (ROOT / "lbg_runtime").rglob("*") if path.is_file() and path.suffix not in (".pyc", ".so")
    ]
    assert [str(path) for path in files if not any(fnmatch(path.name, pattern) for pattern in patterns)] == []


@pytest.mark.parametrize("requirement", [one for one in REQUIREMENTS if not one.startswith(PROJECT["name"])])
def test_a_range_has_a_lower_end_and_admits_what_all_tests_are_run_with(requirement: str) -> None:
    admitted = Requirement(requirement)
    assert PINNED[canonicalize_name(admitted.name)] in admitted.specifier
    assert any(one.operator == ">=" for one in admitted.specifier)
