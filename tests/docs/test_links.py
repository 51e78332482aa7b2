"""Every link of the pages leads somewhere, and every file and command they name is there."""

import re
import subprocess

import pytest

from lbg_runtime.cli.main import command_line
from lbg_runtime.cli.reference.commands import _commands
from tests.docs.pages import DOCS, ROOT, anchors, links
from tests.patience import PATIENCE_S

app = command_line()

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
_PATH = re.compile(r"`((?:lbg_runtime|tests|handlers|docker|docs)/[\w./-]+)`")
_TEST = re.compile(r"`(test_\w+)`")
_COMMAND = re.compile(r"`(?:\.venv/bin/)?(lbg [a-z][a-z ]*?)(?= [A-Z<\[.-]|[,.`])")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@every_page
def test_links_lead_somewhere(page) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        found = (page.parent / name) if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@every_page
def test_files_that_are_named_are_there(page) -> None:
    missing = [name for name in _PATH.findall(page.read_text()) if not (ROOT / name).exists()]
    assert missing == []


def test_tests_that_are_named_are_there() -> None:
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("lbg_runtime/testing/*.py")]
    tests = "\n".join(file.read_text() for file in files)
    named = {(page.name, name) for page in PAGES for name in _TEST.findall(page.read_text())}
    assert len(named) > 50
    assert {(page, name) for page, name in named if f"def {name}(" not in tests} == set()


@every_page
def test_commands_that_are_named_are_commands(page) -> None:
    known = {path for path, _ in _commands("lbg", app)}
    known |= {path.rpartition(" ")[0] for path in known}
    text = " ".join(page.read_text().split())
    named = {" ".join(found.split()) for found in _COMMAND.findall(text)}
    # A word behind the command may be its argument.
    unknown = {one for one in named if one not in known and one.rpartition(" ")[0] not in known - {"lbg"}}
    assert unknown == set()


def test_every_page_can_be_found() -> None:
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        if page.suffix == ".md" and page.exists():
            new |= {(page.parent / target.partition("#")[0]).resolve() for target in links(page)} - reached
    assert {page.name for page in PAGES if page not in reached} == set()


def test_laws_are_proven_by_what_there_is() -> None:
    text = (DOCS / "laws.md").read_text()
    laws = (ROOT / "lbg_runtime/sim/laws.py").read_text()
    named = {name for name in re.findall(r"`([a-z_]+)`", text) if "_" in name}
    assert len(named) > 8
    assert {name for name in named if f"\ndef {name}(" not in laws} == set()


def test_targets_of_make_are_there() -> None:
    for page in PAGES:
        for target in re.findall(r"^ {4}make (\w+)", page.read_text(), re.MULTILINE):
            done = subprocess.run(
                ["make", "-n", target], cwd=ROOT, capture_output=True, check=False, timeout=PATIENCE_S
            )
            assert done.returncode == 0, f"{page.name}: make {target}"
