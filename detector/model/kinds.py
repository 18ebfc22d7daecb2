"""What a deviation of a reading means for the task: lost capacity, work unlike the peers', or neither by itself."""

from __future__ import annotations

from store.schema.catalogue import METRICS

CAPACITY = frozenset(
    {
        "gpu.sm_clock_hertz",
        "gpu.memory_clock_hertz",
        "gpu.power_limit_watts",
        "gpu.throttle_power_seconds_total",
        "gpu.throttle_thermal_seconds_total",
        "gpu.pcie_width",
        "gpu.nvlink_links_up",
        "rdma.rate_bits_per_second",
        "rdma.link_up",
    }
)
"""A device that is held back here does less in the same time: a synchronous task waits for it by nature."""
WORK = frozenset(
    {
        "gpu.duty_cycle_ratio",
        "gpu.power_watts",
        "gpu.graphics_active_ratio",
        "gpu.sm_active_ratio",
        "gpu.sm_occupancy_ratio",
        "gpu.tensor_active_ratio",
        "gpu.dram_active_ratio",
        "gpu.fp64_active_ratio",
        "gpu.fp32_active_ratio",
        "gpu.fp16_active_ratio",
        "gpu.pcie_transmit_bytes_total",
        "gpu.pcie_receive_bytes_total",
        "gpu.nvlink_transmit_bytes_total",
        "gpu.nvlink_receive_bytes_total",
        "rdma.transmit_bytes_total",
        "rdma.receive_bytes_total",
        "rdma.transmit_packets_total",
        "rdma.receive_packets_total",
    }
)
"""How a device does its share of an iteration; all of `nccl`, `cuda` and `process` too."""
STATE = frozenset({"gpu.duty_cycle_ratio", "gpu.power_watts", "gpu.graphics_active_ratio", "gpu.sm_active_ratio"})
"""Of these, what still tells the members of a task apart that stands."""
PACED = frozenset(
    {
        "gpu.sm_clock_hertz",
        "gpu.memory_clock_hertz",
        "gpu.duty_cycle_ratio",
        "gpu.graphics_active_ratio",
        "gpu.sm_active_ratio",
        "gpu.tensor_active_ratio",
        "gpu.dram_active_ratio",
        "gpu.power_watts",
    }
)
"""Readings of a GPU's own pace, which neither other programs nor other routes of the traffic move."""
CONGESTION = (
    "rdma.cnp_sent_total",
    "rdma.ecn_marked_packets_total",
    "rdma.pfc_receive_frames_total",
    "rdma.out_of_sequence_total",
    "rdma.transmit_wait_ticks_total",
)
"""What a port reads where others send it, or the network, too much."""
SYMPTOM = frozenset({*CONGESTION, "rdma.cnp_handled_total", "gpu.remapped_rows", "event.xid:63"})
"""What harms nothing by itself: congestion shows at ports where it does not begin, and so do packets that took several
ways; a memory row that is remapped is mended (NVIDIA, "GPU memory error management": a failed remap or another Xid than
63, which says that one was, tells what is not)."""
OWN_ERRORS = frozenset(
    {
        "gpu.ecc_corrected_total",
        "gpu.nvlink_errors_total",
        "gpu.pcie_replay_total",
        "rdma.symbol_errors_total",
    }
)
"""What a device counts of itself: on another machine it is no consequence of a fault."""
LOSS = frozenset(
    {
        "rdma.packet_sequence_errors_total",
        "rdma.ack_timeouts_total",
        "gpu.nvlink_errors_total",
        "gpu.pcie_replay_total",
        "gpu.ecc_corrected_total",
    }
)
"""What a link loses and sends again, or a memory corrects: minutes of it, without a break, are a cable, a transceiver,
a contact or a chip that fails (NVIDIA, "Xid errors", 92: high single-bit ECC error rate)."""
_PAUSES = "rdma.pfc_transmit_frames_total"
IMPAIRED = LOSS | {_PAUSES}
"""A link that pauses its senders or sends again is slowed each time."""
_STORM = 20.0
"""Times the least difference that counts, or 1,000 pause frames a second: each can stop its sender for the 84 µs that
65,535 quanta of 512 bits take at 400 Gbit/s (IEEE 802.1Qbb), so 8 % of the time and more."""
TRAFFIC = frozenset(
    {
        "rdma.transmit_bytes_total",
        "rdma.receive_bytes_total",
        "rdma.transmit_packets_total",
        "rdma.receive_packets_total",
        _PAUSES,
    }
)
"""What a port reads more of for as long as a copy, a test of the network, or many senders at once take."""
_USES = frozenset({"gpu.tensor_active_ratio", "gpu.dram_active_ratio"})
"""What a GPU uses for its share of an iteration, however long that takes: others wait, and use no more of it."""
_DONE = ("bytes_total", "_packets_total", "operations_total", "launches_total")
"""Ends of readings of work that is done."""
_IDLE = frozenset({"gpu.duty_cycle_ratio", "gpu.graphics_active_ratio", "gpu.sm_active_ratio"})
_PROCESSES = ("nccl", "cuda", "process")
_SYSTEM = ("host.", "process.")
_CONTENTION = frozenset(
    {
        "host.cpu_iowait_ratio",
        "host.cpu_pressure_ratio",
        "host.cpu_system_ratio",
        "host.cpu_utilization_ratio",
        "host.io_pressure_ratio",
        "host.memory_pressure_ratio",
        "host.processes_running",
    }
)
"""What threads of a machine wait for, or what takes its processors."""


def is_capacity(metric: str) -> bool:
    """Whether this reading is one of what a device can do at most."""
    return metric in CAPACITY


def only_slows(metric: str) -> bool:
    """Whether this is a reading of what a device can do at most that makes a task slower, and never stops it."""
    slows = metric in CAPACITY or metric in ("gpu.throttle_reasons", "gpu.pcie_generation")
    return slows and not metric.endswith(("link_up", "links_up"))


def is_throttle(metric: str) -> bool:
    """Whether this reading is time for which a clock was held down, which the clock itself tells as well."""
    return metric.startswith("gpu.throttle_")


def is_traffic(metric: str) -> bool:
    """Whether this reading of a port grows with any traffic, the task's or other."""
    return metric in TRAFFIC


def is_temperature(metric: str) -> bool:
    """Whether this reading is one of how warm a device is."""
    return metric.endswith("temperature_celsius")


def is_work(metric: str) -> bool:
    """Whether this reading tells how a device does its share of the task."""
    return metric in WORK or metric.partition(".")[0] in _PROCESSES


def is_done(metric: str) -> bool:
    """Whether this reading counts work that is done: who does more of it holds up no other."""
    return is_work(metric) and metric.endswith(_DONE)


def tells_pace(metric: str) -> bool:
    """Whether a small difference in this reading may cost the task pace; of an unknown one it may."""
    return metric in PACED or not is_known(metric)


def is_system(metric: str) -> bool:
    """Whether this reading is one of a machine's own system, or of how it runs processes: other work moves it too."""
    return metric.startswith(_SYSTEM)


def is_state(metric: str) -> bool:
    """Whether this reading tells what a device is at, also while its task stands."""
    return metric in STATE or metric.partition(".")[0] in _PROCESSES


def is_host(metric: str) -> bool:
    """Whether this reading is of a machine's own system, which other work on the machine moves as well."""
    return metric.startswith("host.")


def is_copied(metric: str) -> bool:
    """Whether this reading counts bytes of a machine's own system: copies take hours and say nothing of its task."""
    return is_host(metric) and metric.endswith("_bytes_total")


def is_memory(metric: str) -> bool:
    """Whether this reading is of memory in use, of a machine or a GPU: it stays where it is while a program runs."""
    return is_memory_in_use(metric) or metric == "gpu.memory_used_bytes"


def is_memory_in_use(metric: str) -> bool:
    """Whether this reading is of the memory in use, which slows nothing: pressure tells that it is short."""
    return metric == "host.memory_utilization_ratio"


def is_impaired(metric: str) -> bool:
    """Whether this reading counts what slows a link each time."""
    return metric in IMPAIRED


def is_own_error(metric: str) -> bool:
    """Whether this reading counts errors of a device, its memory or its cable, which no other machine makes."""
    return metric in OWN_ERRORS


def is_own_event(metric: str) -> bool:
    """Whether this is an event of a machine's own, as its kernel logs it; that none comes from it is no event."""
    return metric.startswith("event.") and metric != "event.silent"


def is_storm(metric: str, score: float) -> bool:
    """Whether a port pauses its senders so much that the network suffers, whoever waits for it (Guo, SIGCOMM'16)."""
    return metric == _PAUSES and score >= _STORM


def is_loss(metric: str) -> bool:
    """Whether this reading counts what is lost or corrected: minutes of it are a repair to plan, slow yet or not."""
    return metric in LOSS


def is_corrected(metric: str) -> bool:
    """Whether this reading counts errors that were corrected, and cost no time."""
    return metric == "gpu.ecc_corrected_total"


def tells_idleness(metric: str) -> bool:
    """Whether this reading is low on a GPU without work; one that waits for its peers runs NCCL's kernel."""
    return metric in _IDLE


def is_held_back(metric: str) -> bool:
    """Whether this reading counts how often a port has to send less than it could."""
    return metric == "rdma.cnp_handled_total"


def tells_use(metric: str) -> bool:
    """Whether this reading is of what an iteration uses, which is as much on a GPU that is a little slower."""
    return metric in _USES


def draws(metric: str) -> bool:
    """Whether this reading is of the power that a device draws: chips, temperatures and loads differ in it."""
    return metric == "gpu.power_watts"


def tells_contention(metric: str) -> bool:
    """Whether this reading of a machine rises where its processors, memory or disks are wanted by too many."""
    return metric in _CONTENTION


def is_fault(metric: str) -> bool:
    """Whether this reading tells of a fault, or of capacity that is lost, whatever task the machine works for."""
    known = METRICS.get(metric)
    counts = known is not None and known.local
    return counts or metric in CAPACITY | IMPAIRED or metric.endswith("retransmit_segments_total")


def is_symptom(metric: str) -> bool:
    """Whether this reading tells what others do to a machine, or what was mended."""
    return metric in SYMPTOM


def is_known(metric: str) -> bool:
    """Whether the catalogue knows what this reading is."""
    return metric in METRICS
