"""What the package offers, for whoever looks at it in an interpreter or a notebook."""

import ast
import inspect
from importlib import import_module

import pytest

import lbg_runtime
from lbg_runtime import testing
from lbg_runtime.guard.memory import MemoryGuard
from lbg_runtime.guard.postgres import PostgresGuard
from lbg_runtime.guard.sqlite import SqliteGuard
from lbg_runtime.publisher.hashed import HashedPublisher

_CLASSES = [
    *(each for name in lbg_runtime.__all__ if isinstance(each := getattr(lbg_runtime, name), type)),
    testing.Attempt,
    testing.BrokerOnPort,
    testing.Group,
    testing.Handled,
    HashedPublisher,
    MemoryGuard,
    PostgresGuard,
    SqliteGuard,
]


@pytest.mark.parametrize("name", ["lbg_runtime", "lbg_runtime.testing"])
def test_names_that_are_loaded_on_first_use_are_among_those_that_are_completed(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, each) for each in package.__all__)


@pytest.mark.parametrize("name", ["lbg_runtime", "lbg_runtime.testing"])
def test_an_editor_that_goes_by_values_finds_the_names_too(name: str) -> None:
    """Jedi, which completes in IPython, Spyder and Python's language server, takes the assignment of a plain False at
    its word: what is imported under that condition does not exist for it."""
    tree = ast.parse(inspect.getsource(import_module(name)))
    plain = [each for each in tree.body if isinstance(each, ast.Assign) and _names(each) == {"TYPE_CHECKING"}]
    assert plain == []
    assert set(import_module(name).__all__) <= {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }


@pytest.mark.parametrize("kind", _CLASSES, ids=lambda kind: kind.__name__)
def test_what_an_editor_shows_of_a_method_says_what_it_does(kind: type) -> None:
    methods = {name: each for name, each in vars(kind).items() if not name.startswith("_") and callable(each)}
    told = {name: inspect.getdoc(each) or "" for name, each in methods.items()}
    # A reference is followed by nobody who is only shown the text.
    assert [name for name, text in told.items() if not text or (text.startswith("See `") and "\n" not in text)] == []


def _names(assignment: ast.Assign) -> set[str]:
    return {target.id for target in assignment.targets if isinstance(target, ast.Name)}
