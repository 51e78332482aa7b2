"""A line of JSON that shows whether it is as it was written: the notes of a log, and each line of `removed.lanes`.

The field `crc` comes last, the CRC-32 of the line without it. Lines written before there were CRCs have none and are
taken as they are; files may have lines of both kinds. Later formats keep this, so that a flipped bit in the number of
the format can be told from an unknown version.
"""

import zlib
from collections.abc import Mapping

import orjson


def seal(fields: Mapping[str, object]) -> bytes:
    """The line, with its end."""
    return orjson.dumps({**fields, "crc": zlib.crc32(orjson.dumps(fields))}) + b"\n"


def unseal(line: bytes) -> dict[str, object]:
    """The fields; raises `ValueError` if they are not those that were sealed."""
    found = orjson.loads(line)
    if isinstance(found, dict) and ("crc" not in found or found.pop("crc") == zlib.crc32(orjson.dumps(found))):
        return found
    raise ValueError("not as it was sealed")
