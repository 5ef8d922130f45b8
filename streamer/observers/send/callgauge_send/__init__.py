"""Sends the events of voice calls to callgauge, over Kafka or HTTP: bounded, in batches, again
after failures, and never waited for.
"""

from callgauge_send.call import Call

__all__ = ["Call"]
