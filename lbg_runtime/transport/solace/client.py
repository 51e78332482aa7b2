"""Loads the installed client of the vendor: checks whether it has what is needed, and which paths it allows."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from lbg_runtime.config.settings import ClientPathChoice

if TYPE_CHECKING:
    from lbg_runtime.transport.solace.publisher import MakePublisher
    from lbg_runtime.transport.solace.receive_path import MakePath

CLIENT = "solace-pubsubplus 1.11"
"""The versions with all that the transport needs, as in `pyproject.toml`. Earlier ones have no browsers."""


def load_client(
    choice: ClientPathChoice, *, carries_traces: bool = False
) -> tuple[ClientPathChoice, "MakePath", "MakePublisher"]:
    """Import the client (a tenth of a second), check it, and choose how to receive and to publish.

    Raises `ImportError`, with what is installed, if the client cannot be loaded or lacks something. For everything else
    see `choose_paths`: parameters, answer and other errors are the same. Not for the loop's thread.
    """
    try:
        from lbg_runtime.transport.solace.library import missing_parts
        from lbg_runtime.transport.solace.paths import choose_paths
    except ImportError as error:
        raise ImportError(f"the client cannot be loaded, {_installed()}: {error}") from error
    missing = missing_parts()
    if missing is not None:
        raise ImportError(missing)
    return choose_paths(choice, carries_traces=carries_traces)


def _installed() -> str:
    try:
        return f"which is solace-pubsubplus {version('solace-pubsubplus')}"
    except PackageNotFoundError:
        return "which is not installed"
