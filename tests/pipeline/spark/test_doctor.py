"""The doctor calls fit what `pyproject.toml` admits, and nothing else."""

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from lbg_runtime.pipeline.spark.doctor import examine

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
NO_JAVA = {"LBG_JAVA_HOME": "/nothing"}


class Range(NamedTuple):
    """What an extra admits of a package."""

    package: str
    oldest: str
    before: str | None


def ranges() -> list[Range]:
    examined = {finding.what.partition(" ")[0] for finding in examine(NO_JAVA)}
    form = re.compile(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)(?:,<([\d.]+))?")
    found = (form.fullmatch(requirement) for requirement in (*EXTRAS["spark"], *EXTRAS["validate"]))
    return [Range(*one.groups()) for one in found if one is not None and one[1] in examined]


def just_before(version: str) -> str:
    *first, last = version.split(".")
    return ".".join([*first, str(int(last) - 1), "99"])


@pytest.mark.parametrize("admitted", ranges(), ids=lambda admitted: admitted.package)
def test_what_the_extra_admits_is_fine_and_what_it_does_not_admit_is_not(
    admitted: Range, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_fine(version: str) -> bool:
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        (finding,) = (one for one in examine(NO_JAVA) if one.what.partition(" ")[0] == admitted.package)
        return finding.fine

    assert is_fine(admitted.oldest)
    assert not is_fine(just_before(admitted.oldest))
    assert admitted.before is None or (is_fine(just_before(admitted.before)) and not is_fine(admitted.before))


def test_all_that_the_doctor_looks_for_has_a_range() -> None:
    looked_for = {finding.what.partition(" ")[0] for finding in examine(NO_JAVA) if "(" in finding.what}
    assert looked_for == {admitted.package for admitted in ranges()}
