"""The work of the command `call`: finds the one call that is meant."""

from consumers.runtime.process import OperatorError
from streamer.operations.one_call.past import MAX_CALLS, FoundCalls
from streamer.terminal import safe


class CallNotFoundError(OperatorError):
    """No call has this id, or several end with it: the text says which, and where to look."""


def only_call(found: FoundCalls, wanted: str, since: str) -> str:
    """The one call that was found.

    Raises:
        CallNotFoundError: There is none, or there are several.
    """
    names = [name for name, records in found.records.items() if records]
    if len(names) == 1:
        return names[0]
    if names:
        more = " or more" if len(names) == MAX_CALLS else ""
        listed = "".join(f"\n  {safe(name)}" for name in names)
        raise CallNotFoundError(f"{len(names)}{more} calls end with {wanted!r}; give more of the id:{listed}")
    raise CallNotFoundError(
        f"No call with the id {wanted!r} has a score since {since}. Look further back with --since 7d, or check the topic "
        "prefix; `callgauge doctor` checks whether anything arrives."
    )
