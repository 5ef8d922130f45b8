"""A secret setting and the setting of its file: `token` and `token_file`, one of them at most."""

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, SecretStr, ValidationInfo

from consumers.runtime.kafka.secret_files import secret_in

MAX_HEADER_SECRET_CHARS: Final = 1_024
"""Longest secret of a header line. A line has room for more, but a longer one is probably the content of a file, set by mistake."""


def fit_for_a_header(secret: SecretStr) -> SecretStr:
    """Returns the secret if a header line can carry it.

    Raises:
        ValueError: It cannot. The text has the reason, and no part of the secret.
    """
    text = secret.get_secret_value()
    if not text:
        raise ValueError("it must not be empty")
    if len(text) > MAX_HEADER_SECRET_CHARS:
        raise ValueError(f"expected at most {MAX_HEADER_SECRET_CHARS} characters")
    if not all("!" <= char <= "~" for char in text):
        raise ValueError("expected visible ASCII characters without spaces: it travels in a header line")
    return secret


def _has_a_secret(path: Path) -> Path:
    secret_in(path)
    return path


def _fits_a_header(path: Path) -> Path:
    fit_for_a_header(secret_in(path))
    return path


HeaderSecret = Annotated[SecretStr, AfterValidator(fit_for_a_header)]
SecretFile = Annotated[Path, AfterValidator(_has_a_secret)]
HeaderSecretFile = Annotated[Path, AfterValidator(_fits_a_header)]


def or_of_its_file(value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
    """Returns the secret, or the content of its file, which is read once: later changes have no effect.

    Args:
        value: The secret itself, if it is given.
        info: Of the validated field. The setting of the file is validated before it, and has its name with `_file` behind.

    Raises:
        ValueError: Both are given, or the file has no usable secret. The text says nothing of the secret.
    """
    name = f"{info.field_name}_file"
    path = info.data.get(name)
    if path is None:
        return value
    if value is not None:
        raise ValueError(f"{name} is set too; set one of them")
    return secret_in(path)
