"""The distributions that run inside other people's bots, as they lie in the tree."""

import os
from typing import Final

from tests.tidy.source_tree import ROOT

FOLDER: Final = ROOT / "streamer/observers"
SEND: Final = FOLDER / "send"
PIPECAT: Final = FOLDER / "pipecat"
LIVEKIT: Final = FOLDER / "livekit"
PYTHONPATH: Final = os.pathsep.join(map(str, (ROOT, SEND, PIPECAT, LIVEKIT)))
"""Where a program of ours finds them beside callgauge."""
