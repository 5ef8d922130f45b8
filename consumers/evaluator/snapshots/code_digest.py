"""Digest of the code that a snapshot belongs to: of everything that decides the state and its further course."""

import hashlib
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pydantic

import consumers.engine
import schemas

_SUFFIXES: Final = frozenset({".py", ".so", ".pyd"})


@cache
def code_digest() -> str:
    """Returns a digest of the source of the engine and the contract, of Python and of pydantic, in hexadecimal.

    A version number is not enough, because two builds of one version may differ, above all in a checkout.
    """
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {sys.version} pydantic {pydantic.VERSION}\n".encode())
    for package in (consumers.engine, schemas):
        root = Path(str(package.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()
