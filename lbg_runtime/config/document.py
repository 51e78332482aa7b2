"""YAML into plain mappings, with the line of a mistake; keys given twice are refused, as one would be lost."""

import re
from collections.abc import Hashable
from pathlib import Path

import yaml

from lbg_runtime.model.errors import ConfigError

_NAMED = re.compile(r"(alias|tag|tag handle) (['\"]).*\2", re.DOTALL)
"""In a problem that the parser reports. A password without quotes may begin with one of `*`, `&` and `!`."""

MAX_MERGED = 10_000
"""Keys of one mapping, including those merged into it by `<<`."""

_MISREAD = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-9]+)+)")
"""YAML 1.1 reads `010` as 8 and `1:30` as 90, and few who write that mean it."""

_AS_TEXT = "valid YAML, with quotes around values that are meant as text"

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "timestamp": "a date"}


class _UniqueKeysLoader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        if node.tag == "tag:yaml.org,2002:int" and _MISREAD.fullmatch(str(node.value)):
            problem, expected = "a number that YAML reads as another one", "plain digits, or quotes around what is text"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark, expected)
        try:
            value: object = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()
            if isinstance(value, int):
                # Hexadecimal ones may have any number of digits, with which Python writes none.
                str(value)
        except UnicodeEncodeError:
            raise yaml.constructor.ConstructorError(None, None, "half a character", node.start_mark) from None
        # The constructors raise whatever Python does; none of that may be shown, as it quotes the text.
        except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError):
            kind = _KINDS.get(node.tag.rpartition(":")[2], "what its tag says")
            problem = f"the value is not {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark, _AS_TEXT) from None
        if isinstance(value, set):
            # Of modules, say, the order counts.
            raise yaml.constructor.ConstructorError(None, None, "a set, which has no order", node.start_mark, "a list")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                # Which one is not shown: it may be a secret, with braces that were meant as a part of it.
                raise yaml.constructor.ConstructorError(None, None, "a key given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        # Others merge again what was merged here.
        if len(node.value) > MAX_MERGED:
            raise yaml.constructor.ConstructorError(None, None, "too much is merged", node.start_mark)


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
        problem, named_count = _NAMED.subn(r"\1", error.problem or "not YAML")
        expected = error.note or (_AS_TEXT if named_count else "valid YAML")
        raise ConfigError(f"{path}{line}", problem, expected) from None
    except yaml.YAMLError as error:
        raise ConfigError(str(path), " ".join(str(error).split()), "valid YAML") from None
    except RecursionError:
        raise ConfigError(str(path), "nested too deep", "sections a few levels deep") from None
    if not isinstance(document, dict):
        found = "a list" if isinstance(document, list) else "an empty file" if document is None else "a single value"
        raise ConfigError(str(path), found, "sections such as `connection:` and `group:`")
    return document
