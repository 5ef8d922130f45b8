"""`callgauge` whose sequencer gets no more of one input after SIGUSR1, while the broker goes on to
say that there are records.

`python -m tests.support.withheld_input TOPIC run --roles sequencer`: the topic's name without a
prefix, and then the command.
"""

import signal
import sys
from typing import Any

from consumers.sequencer.reading import InputReader
from streamer.cli import main as cli


def withhold(topic: str) -> None:
    """From the signal on, no reader of this process fetches records of this input."""
    poll = InputReader.poll
    is_withheld = False

    async def poll_others(self: InputReader) -> None:
        if is_withheld:
            self._consumer.pause(*(tp for tp in self._assigned if tp.topic.endswith(topic)))
        await poll(self)

    def begin(*_: Any) -> None:
        nonlocal is_withheld
        is_withheld = True

    signal.signal(signal.SIGUSR1, begin)
    # there is no setting for a slow line
    InputReader.poll = poll_others  # type: ignore[method-assign]


if __name__ == "__main__":
    withhold(sys.argv.pop(1))
    cli.main()
