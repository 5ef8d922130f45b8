"""Sends the events of a LiveKit agent session to callgauge, which reads and scores them while the
call runs.
"""

from callgauge_livekit.attaching import Attached, attach

__all__ = ["Attached", "attach"]
