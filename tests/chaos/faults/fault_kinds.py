"""Every kind of fault, and its function."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.chaos.faults import broker_faults, fleet_faults, log_faults, network_faults
from tests.chaos.faults.faults import Fault
from tests.chaos.faults.scene import Scene

Harm = Callable[[Scene], str | None]

HARM: Final[Mapping[Fault, Harm]] = {
    Fault.KILL: fleet_faults.kill,
    Fault.TERMINATE: fleet_faults.terminate,
    Fault.FREEZE: fleet_faults.freeze,
    Fault.JOIN: fleet_faults.join,
    Fault.LEAVE: fleet_faults.leave,
    Fault.NEWER: fleet_faults.newer,
    Fault.CLOCK_FORWARD: fleet_faults.clock_forward,
    Fault.CLOCK_BACK: fleet_faults.clock_back,
    Fault.SLOW: network_faults.slow,
    Fault.HOLE: network_faults.hole,
    Fault.ONE_WAY: network_faults.one_way,
    Fault.HALF_OPEN: network_faults.half_open,
    Fault.CUT: network_faults.cut,
    Fault.REFUSED: network_faults.refused,
    Fault.HEAVY_CLOSE: log_faults.heavy_close,
    Fault.DELETED_READ: log_faults.deleted_read,
    Fault.DELETED_UNREAD: log_faults.deleted_unread,
    Fault.PARTITIONS_ADDED: log_faults.partitions_added,
    Fault.BROKER_TERMINATED: broker_faults.terminated,
    Fault.BROKER_KILLED: broker_faults.killed,
    Fault.COORDINATOR_MOVED: broker_faults.coordinator_moved,
    Fault.OUT_OF_SIGHT: broker_faults.out_of_sight,
}
"""By kind; the functions describe the harm and the conditions that must hold after it."""
