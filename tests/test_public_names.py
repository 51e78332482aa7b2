"""What the package offers, for whoever looks at it in an interpreter or a notebook."""

from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["lbg_runtime", "lbg_runtime.testing"])
def test_names_that_are_loaded_on_first_use_are_among_those_that_are_completed(name: str) -> None:
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, each) for each in package.__all__)
