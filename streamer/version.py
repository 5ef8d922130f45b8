"""The version of the running program."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The version of the installed distribution; `unknown` in a tree that is not installed."""
    try:
        return version("callgauge")
    except PackageNotFoundError:
        return "unknown"
