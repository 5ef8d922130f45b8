"""A secret setting and the setting of its file: `token` and `token_file`, one of them at most."""

from pydantic import SecretStr, ValidationInfo

from consumers.runtime.kafka.secret_files import secret_in


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
