"""What decides the values of a call beside its events: the code, the settings and Python."""

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

import pydantic

import consumers.engine
import schemas
from consumers.evaluator.settings import EvaluatorSettings


@cache
def code_digest() -> str:
    """Returns a digest of the source of the engine and the contract, of Python and of pydantic, in
    hexadecimal.

    A version number is not enough, because two builds of one version may differ, above all in a
    checkout.
    """
    digest = hashlib.sha256(
        f"{sys.implementation.cache_tag} {sys.version} pydantic {pydantic.VERSION}\n".encode()
    )
    for package in (consumers.engine, schemas):
        root = Path(str(package.__file__)).parent
        for path in sorted(
            path for path in root.rglob("*") if path.suffix in {".py", ".so", ".pyd"}
        ):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def version_of(settings: EvaluatorSettings) -> str:
    """Returns the version in the row of a partition: equal for processes that publish the same
    records of the same log.
    """
    deciding = settings.model_dump(
        mode="json", include={"code_version", "limits", "goals", "redaction", "writes_transcripts"}
    )
    deciding["code"] = code_digest()
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:16]
