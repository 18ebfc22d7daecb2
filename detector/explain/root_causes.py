"""The likely kind of fault, from the pattern of what moved: one row a kind; where no row fits it is unknown.

A sign is a reading that went up (`gpu.temperature_celsius+`) or down (`-`), an event of the machine (`event.xid:79`; a
star stands for any end), a table that fell silent (`gone.gpu`), or a method's own reading (`progress.nccl.operation`).
Signs with `&` between them tell together only.
After the tables of root causes in Minder (NSDI'25) and ByteRobust (SOSP'25), and NVIDIA's list of Xids.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: what people call it, signs of which one is enough, signs that go with it, what to do next."""

    name: str
    words: str
    tell: tuple[str, ...]
    support: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True)
class Likely:
    """The kind that fits best, and the signs that speak for it (none where it is unknown)."""

    kind: Kind
    signs: tuple[str, ...]


def _kind(name: str, words: str, tell: str, support: str, advice: str) -> Kind:
    return Kind(name, words, tuple(tell.split()), tuple(support.split()), advice)


UNKNOWN = _kind(
    "unknown",
    "unknown: what moved fits no kind of fault that has a pattern",
    "",
    "",
    "Look at the curves in order of onset; compare with the machine's kernel log and with what was changed on it.",
)

FACTS = (
    _kind(
        "machine_lost",
        "the machine is down or cannot be reached",
        "gone.host event.silent",
        "gone.*",
        "Look at its console or BMC; if it is up, at its network and at the agent (peerwatch doctor on the machine).",
    ),
    _kind(
        "gpu_lost",
        "a GPU fell off the bus, or its driver does not answer",
        "event.xid:79 event.xid:119 event.xid:120 event.gpu_lost event.nvml_stalled gone.gpu",
        "event.xid:* gpu.pcie_fatal_errors_total+ gpu.recovery_action+",
        "Drain the machine; reset the GPU or power-cycle the machine, and reseat or replace the GPU if it comes back.",
    ),
    _kind(
        "gpu_memory",
        "faulty memory of a GPU",
        "gpu.ecc_uncorrected_total+ gpu.ecc_corrected_total+ gpu.remapped_rows+ gpu.remap_failed+ event.ecc:* "
        "event.remap:* event.poison event.health:memory event.xid:48 event.xid:63 event.xid:64 event.xid:92 "
        "event.xid:94 event.xid:95",
        "gpu.recovery_action+ event.xid:*",
        "Drain the machine and reset the GPU (nvidia-smi -q -d ECC,ROW_REMAPPER); replace it if remapping fails.",
    ),
    _kind(
        "nvlink",
        "NVLink: a link of a GPU or its switch",
        "gpu.nvlink_errors_total+ gpu.nvlink_links_up- event.xid:74 event.sxid:* event.health:nvlink "
        "event.health:nvswitch nvswitch.fatal_sxid+ nvswitch.fatal_errors_total+ nvswitch.reset_required+",
        "gpu.nvlink_transmit_bytes_total- gpu.nvlink_receive_bytes_total-",
        "See nvidia-smi nvlink -s and -e; reset the GPU, and the fabric manager if a switch is meant.",
    ),
    _kind(
        "pcie",
        "PCIe: the link between a GPU and its host is narrow, slow or has errors",
        "gpu.pcie_width- gpu.pcie_generation- gpu.pcie_replay_total+ gpu.pcie_correctable_errors_total+ "
        "gpu.pcie_fatal_errors_total+ event.aer",
        "gpu.pcie_receive_bytes_total- gpu.pcie_transmit_bytes_total- rdma.pfc_transmit_frames_total+ "
        "rdma.cnp_sent_total+",
        "Compare lspci -vv (LnkSta) with a healthy machine; reseat the card or the riser.",
    ),
    _kind(
        "link_down",
        "a network port is down, flaps or has come up at a lower rate",
        "rdma.link_up- rdma.rate_bits_per_second- rdma.link_downed_total+ event.link_down event.nic_failed",
        "rdma.transmit_bytes_total- rdma.receive_bytes_total- gone.rdma",
        "Look at the port's state (ibstat, ethtool), its cable and its transceiver, and the other end's switch port.",
    ),
    _kind(
        "host_hardware",
        "a fault of the host's processor, memory or board",
        "event.mce event.edac",
        "",
        "Read the kernel log and the BMC's event log; replace the part that they name.",
    ),
    _kind(
        "software_mismatch",
        "software: a rank called another operation than its peers",
        "progress.nccl.operation progress.nccl.bytes_total",
        "",
        "Compare the program, its configuration and its data on that rank: it took another branch.",
    ),
    _kind(
        "software_crash",
        "software: a process of the task ended",
        "event.rank_exit event.xid:13 event.xid:31 event.xid:43 event.xid:45",
        "gone.nccl gone.cuda",
        "Read the rank's own log and core dump from just before the time of onset.",
    ),
    _kind(
        "gpu_hang",
        "a GPU that hangs in the middle of an operation",
        "progress.nccl.waits_for_gpu",
        "gpu.power_watts- gpu.sm_active_ratio- gpu.duty_cycle_ratio-",
        "Look at the GPU (nvidia-smi, kernel log) before anything is restarted; reset it, and run dcgmi diag -r 3.",
    ),
    _kind(
        "rank_hang",
        "a rank that never came to its collective: its program hangs, or its GPU",
        "progress.nccl.operations_total",
        "gpu.power_watts- gpu.sm_active_ratio- gpu.duty_cycle_ratio- nccl.active_ratio-",
        "Look at where it was (below), and at the GPU (nvidia-smi), before anything is restarted.",
    ),
)
"""What is a fact by itself."""

STATES = (
    _kind(
        "gpu_heat",
        "a GPU that is slow by heat",
        "gpu.throttle_thermal_seconds_total+ gpu.throttle_reasons+",
        "gpu.temperature_celsius+ gpu.memory_temperature_celsius+ gpu.sm_clock_hertz- gpu.power_watts-",
        "Look at fans, airflow, inlet temperature and the GPU's heat sink (nvidia-smi -q -d TEMPERATURE,PERFORMANCE).",
    ),
    _kind(
        "gpu_power",
        "GPUs held down by a power limit",
        "gpu.throttle_power_seconds_total+ gpu.power_limit_watts-",
        "gpu.power_watts- gpu.sm_clock_hertz-",
        "Compare power limits (nvidia-smi -q -d POWER), power supplies and the rack's power cap with the peers'.",
    ),
    _kind(
        "network_errors",
        "a network link that corrupts or loses packets",
        "rdma.symbol_errors_total+ rdma.packet_sequence_errors_total+ rdma.out_of_sequence_total+ "
        "rdma.ack_timeouts_total+ rdma.discards_total+ process.tcp_retransmit_segments_total+ "
        "host.tcp_retransmit_segments_total+",
        "nccl.send_pending_ratio+ rdma.transmit_wait_ticks_total+",
        "Clean or swap the cable or the transceiver; look at error counters of the switch port at the other end.",
    ),
    _kind(
        "network_slow",
        "a slow or congested network link",
        "rdma.transmit_wait_ticks_total+ rdma.pfc_receive_frames_total+ rdma.cnp_handled_total+ "
        "rdma.ecn_marked_packets_total+ nccl.send_pending_ratio+ progress.nccl.send_pending_ratio "
        "progress.nccl.waits_to_send_to progress.nccl.waits_to_receive_from",
        "rdma.pfc_transmit_frames_total+ rdma.cnp_sent_total+ rdma.transmit_bytes_total- rdma.receive_bytes_total- "
        "host.network_transmit_bytes_total-",
        "Measure the port alone (ib_write_bw, iperf3); look at the switch port, its pauses and what shares the path.",
    ),
    _kind(
        "garbage_collection",
        "long garbage collections of the training program",
        "cuda.gc_seconds_total+ cuda.gc_pauses_total+",
        "nccl.active_ratio- cuda.synchronize_seconds_total- cuda.launches_total-",
        "Collect at the same step on all ranks (gc.disable() and gc.collect() every so many steps), or gc.freeze().",
    ),
    _kind(
        "memory",
        "the host is short of memory",
        "host.memory_pressure_ratio+ host.memory_utilization_ratio+ event.oom*",
        "host.cpu_system_ratio+ host.io_pressure_ratio+ host.disk_read_bytes_total+",
        "Find the process that takes the memory (ps, slabtop, /dev/shm): data loaders, caches, a leak, another user.",
    ),
    _kind(
        "storage",
        "slow storage: a disk or a file system",
        "host.io_pressure_ratio+ host.cpu_iowait_ratio+ host.disk_utilization_ratio+ "
        "process.disk_wait_seconds_total+ event.disk_lost event.fs_lost",
        "host.disk_read_bytes_total+ host.disk_write_bytes_total+",
        "Look at iostat -x and the kernel log; at the mount of the data set and of the checkpoints.",
    ),
    _kind(
        "host_cpu",
        "the host is short of CPU",
        "host.cpu_pressure_ratio+ host.cpu_utilization_ratio+ host.processes_running+ process.cpu_wait_seconds_total+",
        "host.cpu_system_ratio+ host.context_switches_total+ cuda.synchronize_seconds_total- nccl.active_ratio- "
        "cuda.launches_total-",
        "Find the process that takes the CPUs (top, pidstat): another user, data loaders; affinity, governor.",
    ),
)
"""What somebody lacks or has too much of."""

TRACES = (
    _kind(
        "gpu_clock",
        "a GPU with low clocks, for a reason that it does not tell",
        "gpu.sm_clock_hertz- gpu.memory_clock_hertz-",
        "gpu.power_watts- gpu.temperature_celsius- nccl.host_blocked_seconds_total-",
        "Look at locked or application clocks (nvidia-smi -q -d CLOCK,PERFORMANCE) and compare with the peers.",
    ),
)
"""What is seen of a cause that is not."""

BUSY = (
    _kind(
        "gpu_compute",
        "a GPU that computes longer than its peers, for a reason that no reading shows",
        "nccl.host_blocked_seconds_total- "
        "progress.nccl.active_ratio&gpu.tensor_active_ratio+ progress.nccl.active_ratio&gpu.sm_active_ratio+ "
        "nccl.active_ratio-&gpu.tensor_active_ratio+ nccl.active_ratio-&gpu.sm_active_ratio+",
        "nccl.active_ratio- gpu.power_watts- gpu.sm_active_ratio- cuda.synchronize_seconds_total+",
        "Run a burn-in of that GPU alone (dcgmi diag -r 3, a GEMM loop) and compare with a peer.",
    ),
)
"""A GPU that others wait for while it is at work: its host is not what comes late."""

LATENESS = (
    _kind(
        "host_late",
        "a program that comes late on the host, for a reason that no reading shows",
        "nccl.active_ratio- progress.nccl.active_ratio cuda.synchronize_seconds_total-",
        "cuda.launches_total-",
        "Profile the process on the host (py-spy top): input, Python, locks; compare with a peer.",
    ),
)
"""What is left where a program comes late and nothing tells why."""

TABLE = (FACTS, STATES, TRACES, BUSY, LATENESS)


def likely(signs: Mapping[str, float]) -> Likely:
    """The kind that fits best: of the first tier in which any does, most telling signs, then others.

    `signs` are those seen, with their effect in multiples of the least that counts. Of kinds that
    fit alike the one with the strongest sign wins, then the first in the table.
    """
    for tier in TABLE:
        found = _best(signs, tier)
        if found.signs:
            return found
    return Likely(UNKNOWN, ())


def _best(signs: Mapping[str, float], tier: tuple[Kind, ...]) -> Likely:
    best, found = (0, 0, 0.0), Likely(UNKNOWN, ())
    for kind in tier:
        tell, support = _seen(kind.tell, signs), _seen(kind.support, signs)
        strength = max((signs[sign] for sign in tell), default=0.0)
        rank = (len(tell), len(support), strength)
        if tell and rank > best:
            best, found = rank, Likely(kind, tuple(dict.fromkeys([*tell, *support])))
    return found


def _seen(patterns: tuple[str, ...], signs: Mapping[str, float]) -> list[str]:
    found = set[str]()
    for pattern in patterns:
        parts = [fnmatch.filter(signs, part) for part in pattern.split("&")]
        if all(parts):
            found.update(*parts)
    return [sign for sign in signs if sign in found]
