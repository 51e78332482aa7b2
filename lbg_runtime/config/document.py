"""YAML into plain mappings, with the line of what is wrong; keys given twice are refused, as one would be lost."""

from collections.abc import Hashable
from pathlib import Path

import yaml

from lbg_runtime.model.errors import ConfigError


class _UniqueKeysLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} given twice", key.start_mark)
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> dict[str, object]:
    """The file's top mapping, with nothing interpreted. Raises `ConfigError` naming the file, and the line if known."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "a readable settings file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), f"byte {error.start} is not UTF-8", "a text file in UTF-8") from None
    try:
        # The loader is a SafeLoader: it makes plain values only.
        document = yaml.load(text, Loader=_UniqueKeysLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f":{error.problem_mark.line + 1}"
        raise ConfigError(f"{path}{line}", error.problem or "not YAML", "valid YAML") from None
    except yaml.YAMLError as error:
        raise ConfigError(str(path), " ".join(str(error).split()), "valid YAML") from None
    if not isinstance(document, dict):
        found = "an empty file" if document is None else f"a {type(document).__name__}"
        raise ConfigError(str(path), found, "sections such as `connection:` and `group:`")
    return document
