"""YAML into plain mappings, with the line of a mistake; keys given twice are refused, as one would be lost."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from lbg_runtime.model.errors import ConfigError

_NAMED = re.compile(r"(alias|tag|tag handle) (['\"]).*\2", re.DOTALL)
"""In a problem that the parser reports. A password without quotes may begin with one of `*`, `&` and `!`."""

LARGEST_BYTES = 1_000_000
"""Of a file; a device may give more than any memory holds."""

MAX_MERGED = 10_000
"""Keys of one mapping, including those merged into it by `<<`."""

_MERGE, _VALUE = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"
"""Of the keys `<<` and `=`, which are plain text in quotes."""

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
            # Where a list belongs, its order counts: that of modules, for example.
            raise yaml.constructor.ConstructorError(None, None, "a set, which has no order", node.start_mark, "a list")
        return value

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Lay the mapping over those that it merges, of which the one that is named first counts.

        PyYAML's own, which is called in the same places, merges them by 6.0.4 in another order than before. A mapping
        may come several times: before it is made, and before each that merges it.
        """
        merged = list(self._merged_by(node))
        # Without what it merges, first: one that merges itself has an end.
        node.value = [(key, value) for key, value in node.value if key.tag != _MERGE]
        pairs: dict[object, tuple[yaml.Node, yaml.Node]] = {}
        for source in reversed(merged):
            self.flatten_mapping(source)
            pairs.update((_identity(key), (key, value)) for key, value in source.value)
            # Others merge again what was merged here.
            if len(pairs) > MAX_MERGED:
                raise yaml.constructor.ConstructorError(None, None, "too much is merged", node.start_mark)
        pairs.update((_identity(key), (key, value)) for key, value in node.value)
        node.value = list(pairs.values())

    def _merged_by(self, node: yaml.MappingNode) -> Iterator[yaml.MappingNode]:
        """What the mapping merges, in the order in which it is written; no key may be there twice."""
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    # Which one is not shown: it may be a secret, with braces that were meant as a part of it.
                    raise yaml.constructor.ConstructorError(None, None, "a key given twice", key.start_mark)
                seen.add(key.value)
            if key.tag == _VALUE:
                key.tag = "tag:yaml.org,2002:str"
            elif key.tag == _MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                    if not isinstance(source, yaml.MappingNode):
                        problem, expected = "what is merged is no mapping", "a mapping, or a list of mappings"
                        raise yaml.constructor.ConstructorError(None, None, problem, source.start_mark, expected)
                    yield source


def _identity(key: yaml.Node) -> object:
    """Equal for keys of which a mapping has one, as far as that can be told before they are made."""
    return (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)


def read_document(path: Path) -> dict[str, object]:
    """The file's top mapping, with nothing interpreted. Raises `ConfigError` naming the file, and the line if known."""
    try:
        # Read only to the limit, and without a look at the size: the file may be a pipe.
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise ConfigError(str(path), f"more than {LARGEST_BYTES} bytes", "a settings file")
        text = content.decode()
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
