"""Whether values fit schemas, as the field's own library sees it, and that neither can keep the
evaluator busy.
"""

import random
from typing import Any

import pytest

# it has no types of its own
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from consumers.engine.measures.eva_tools import MAX_CHECKS, MAX_SCHEMA_DEPTH, fits

TYPES: tuple[Any, ...] = (
    "object",
    "array",
    "string",
    "number",
    "integer",
    "boolean",
    "null",
    ["string", "null"],
)
LEAVES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    3,
    -1,
    10**30,
    0.5,
    1.0,
    1e300,
    "",
    "a",
    "abc",
    "A1",
)


def _value(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.randrange(4 if depth < 3 else 2)
    if kind < 2:
        return draw.choice(LEAVES)
    size = draw.randrange(3)
    if kind == 2:
        return [_value(draw, depth + 1) for _ in range(size)]
    return {draw.choice("abc"): _value(draw, depth + 1) for _ in range(size)}


def _schema(draw: random.Random, depth: int = 0) -> Any:
    if depth and draw.random() < 0.1:
        return draw.choice((True, False, {}))
    plain = {
        "type": TYPES,
        "minimum": (0, 1.5),
        "maximum": (1, 2),
        "exclusiveMinimum": (0,),
        "exclusiveMaximum": (3,),
        "multipleOf": (2, 0.5),
        "minLength": (1,),
        "maxLength": (2,),
        "minItems": (1,),
        "maxItems": (1,),
        "pattern": ("^a", "c$", "[A-Z][0-9]{1,3}"),
        "required": (["a"], ["b"]),
        "const": LEAVES,
        "enum": ([1, "a"],),
    }
    schema: dict[str, Any] = {
        name: draw.choice(values)
        for name, values in plain.items()
        if draw.random() < (0.5 if name == "type" else 0.1)
    }
    if depth < 3:
        if draw.random() < 0.4:
            schema["properties"] = {draw.choice("abc"): _schema(draw, depth + 1) for _ in range(2)}
        for name in ("items", "additionalProperties", "not"):
            if draw.random() < 0.15:
                schema[name] = _schema(draw, depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            if draw.random() < 0.1:
                schema[name] = [_schema(draw, depth + 1) for _ in range(2)]
        if draw.random() < 0.1:
            schema["$ref"] = "#/$defs/shared"
    return schema


def test_the_library_agrees() -> None:
    draw = random.Random(6)  # noqa: S311  # reproducible examples, nothing secret
    fitting = 0
    for _ in range(3_000):
        schema, value = _schema(draw), _value(draw)
        schema["$defs"] = {"shared": _schema(draw, 3)}
        expected = Draft202012Validator(schema).is_valid(value)
        assert fits(value, schema) is expected, f"{value!r} with {schema!r}"
        fitting += expected
    assert 500 < fitting < 2_500


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email"},
        {"pattern": "(a+)+$"},  # without a bound it could be searched for ever
        {"pattern": "("},
        {"$ref": "#/$defs/nowhere"},
        {"$ref": "https://example.com/schema.json"},
        {"required": "name", "properties": ["name"], "anyOf": [True], "type": 7, "minLength": "1"},
        "no schema at all",
    ],
)
def test_what_is_not_understood_forbids_nothing(schema: object) -> None:
    assert fits("a" * 40, schema)


def test_a_schema_that_refers_to_itself_ends() -> None:
    nested: Any = "leaf"
    for _ in range(MAX_SCHEMA_DEPTH + 10):
        nested = {"next": nested}
    assert fits(nested, {"type": "object", "properties": {"next": {"$ref": "#"}}})
    assert fits(1, {"$ref": "#"})


def test_a_schema_with_too_many_branches_ends() -> None:
    schema: dict[str, Any] = {"not": False}
    for _ in range(MAX_SCHEMA_DEPTH):
        schema = {"allOf": [schema, schema, schema]}
    assert fits([0] * 2 * MAX_CHECKS, {"items": schema})
