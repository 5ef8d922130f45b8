"""The schema of `scores` is a promise to every reader of the topic: it changes with its version, or not at all."""

import hashlib
import json
from pathlib import Path
from typing import Any

from schemas.scores.records import SCHEMA_VERSION, SCORE_RECORD

ROOT = Path(__file__).parents[3]
DIGESTS = Path(__file__).with_name("scores_schema_digests.json")
WORDS = {"title", "description"}


def without_words(schema: Any) -> Any:
    """The schema without its explanations, which may change at any time, and without the number of its own version."""
    if isinstance(schema, dict):
        return {
            name: {**without_words(part), "default": "its own"} if name == "schema_version" else without_words(part)
            for name, part in schema.items()
            if name not in WORDS or not isinstance(part, str)
        }
    return [without_words(part) for part in schema] if isinstance(schema, list) else schema


def digest() -> str:
    """Schemas of writing and of reading."""
    both = [without_words(SCORE_RECORD.json_schema(mode=mode)) for mode in ("serialization", "validation")]
    return hashlib.sha256(json.dumps(both, sort_keys=True).encode()).hexdigest()


def test_the_schema_of_scores_changes_with_its_version() -> None:
    known = json.loads(DIGESTS.read_text())
    assert known.get(str(SCHEMA_VERSION)) == digest(), (
        f"The JSON schema of `scores` is not the one that schema version {SCHEMA_VERSION} has in {DIGESTS.name}. Raise "
        f'SCHEMA_VERSION in schemas/scores/records.py by one and add the line "<the new version>": "{digest()}" there. Only '
        "where no release has this version yet, or a new pydantic words the same schema otherwise, replace the digest. "
        "deploy/upgrades.md says what a new version asks of those who run callgauge."
    )


def test_no_version_is_skipped_or_forgotten() -> None:
    known = json.loads(DIGESTS.read_text())
    assert list(known) == [str(version) for version in range(1, SCHEMA_VERSION + 1)]
    assert len(set(known.values())) == len(known)


def test_the_page_about_upgrades_has_each_version() -> None:
    page = (ROOT / "deploy" / "upgrades.md").read_text(encoding="utf-8")
    for version in range(2, SCHEMA_VERSION + 1):
        assert f"\n### From schema version {version - 1} to {version}\n" in page


def test_words_are_no_part_of_the_schema_and_fields_are() -> None:
    schema = {"description": "x", "properties": {"title": {"title": "Title", "type": "string"}}, "required": ["title"]}
    assert without_words(schema) == {"properties": {"title": {"type": "string"}}, "required": ["title"]}
