"""A pipecat observer that sends the events of a call to Kafka, where callgauge reads and scores
them.
"""

from pipecat_callgauge.observer import CallgaugeObserver
from pipecat_callgauge.setup_file import attach

__all__ = ["CallgaugeObserver", "attach"]
