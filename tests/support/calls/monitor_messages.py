"""Messages of ElevenLabs' conversation socket, made from its AsyncAPI document: one of each type
that a server sends.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final

import yaml

from tests.support.conformance_data import conformance

DOCUMENT: Final = "elevenlabs-agent.asyncapi.yaml"
TEXT: Final = "words"
NUMBER: Final = 7

Json = dict[str, Any]


@functools.cache
def _document() -> Json:
    loaded: Json = yaml.safe_load(conformance(DOCUMENT).read_text())
    return loaded


def server_messages(*, whole: bool) -> list[Json]:
    """One message of each type that the document lets a server send.

    Args:
        whole: With every field, or with those alone that are required.
    """
    sent = _document()["channels"]["AgentMessages"]["publish"]["message"]["oneOf"]
    return [_sample(_resolved(_resolved(each)["payload"]), whole=whole) for each in sent]


def _resolved(node: Any) -> Any:
    while isinstance(node, Mapping) and "$ref" in node:
        found: Any = _document()
        for part in node["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        node = found
    return node


def _sample(schema: Any, *, whole: bool) -> Any:
    schema = _resolved(schema)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return _sample(schema[choice][0], whole=whole)
    if "allOf" in schema:
        parts = [_sample(part, whole=whole) for part in schema["allOf"]]
        return {name: value for part in parts for name, value in part.items()}
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            wanted = (
                fields if whole else [name for name in fields if name in schema.get("required", ())]
            )
            return {name: _sample(fields[name], whole=whole) for name in wanted}
        case "array":
            return [_sample(schema["items"], whole=whole)] if whole and "items" in schema else []
        case "integer":
            return NUMBER
        case "number":
            return 0.5
        case "boolean":
            return True
        case _:
            return TEXT
