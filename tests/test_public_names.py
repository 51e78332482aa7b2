"""What the package offers, for whoever looks at it in an interpreter or a notebook."""

import ast
import inspect
from importlib import import_module

import pytest


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


def _names(assignment: ast.Assign) -> set[str]:
    return {target.id for target in assignment.targets if isinstance(target, ast.Name)}
