"""The catalogue: tables, their key columns, and every metric with its unit, tolerances and meaning.

Names follow Prometheus: base units as suffix, `_total` for a counter that only grows, ratios from 0 to 1.
"""

from __future__ import annotations

from dataclasses import replace

from store.schema.job import JOB
from store.schema.metric import Direction, Kind, Metric, Table

__all__ = ["LOCAL", "METRICS", "TABLES", "ZOOM", "ZOOMED", "Direction", "Kind", "Metric", "Table"]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("host", (), True, "one reading of the operating system"),
        Table("gpu", ("gpu",), True, "one reading of one GPU"),
        Table("rdma", ("port",), True, "one reading of one RDMA port", has_driver_columns=True),
        Table("nccl", ("gpu", "slot"), True, "one communicator of one process, over the last period", fast=True),
        Table("cuda", ("gpu",), True, "CUDA calls of one process, over the last period"),
        Table("process", ("gpu",), True, "what the processes of one GPU, and those that they started, waited for"),
        Table("startup", ("gpu",), False, "how a training process came up"),
        Table("start", ("gpu",), False, "how a training process came up: one row, once it runs"),
        Table("stack", ("gpu",), False, "where a process that hangs is"),
        Table("nvswitch", ("switch",), False, "one reading of one NVSwitch, by DCGM"),
        Table("profile", ("gpu",), False, "functions of one process in a window that all machines had together"),
        Table("ras", ("slot",), False, "what NCCL reports of a task that hangs, a communicator each"),
        Table("task", (), False, "which training task the machine works for, where a scheduler or a recording says so"),
        Table("job_log", ("job",), False, "what a job writes of itself: logs, TensorBoard files, checkpoints"),
        Table("card", ("gpu",), False, "which card each GPU is, on change and once a week"),
        Table("check", ("check",), False, "what an active check of a suspect found (`peerwatch check`)"),
        Table("job", ("gpu",), False, "which job of a scheduler a training process belongs to"),
        Table("event", ("source", "code"), False, "something discrete: an Xid, a process that left a communicator"),
        Table("verdict", ("task",), False, "what the detector concluded"),
        Table("source", ("source",), False, "the state of each source of the agent"),
        Table("probe", ("library",), False, "what the agent has attached to, and what is blocked and why"),
        Table("lease", (), False, "which of several detectors speaks, a row each term", replaced=True),
        Table("threshold", (), False, "how far the detector on this machine has learned its thresholds"),
        Table("delivery", ("sink",), False, "what each sink of alerts was sent, where detectors share the store"),
    )
}
UNJUDGED = ("verdict", "probe", "lease", "threshold", "delivery")
"""The tables that say nothing of a machine's work."""

HISTORY = ("card", "check", "event", "start", "verdict")
"""Tables of few rows from which a machine's history is read: the embedded store retains them longer than readings."""

ZOOM = "_zoom"
"""Ends the names of tables of readings that were taken many times a second, as the detector requested (zoom)."""
ZOOMED = ("host", "gpu", "rdma")
"""The tables of which there are such."""
TABLES |= {
    f"{name}{ZOOM}": Table(f"{name}{ZOOM}", TABLES[name].keys, False, f"{TABLES[name].help}, many times a second")
    for name in ZOOMED
}


def _metric(row: str) -> Metric:
    table, name, unit, kind, direction, absolute, relative, local, text, *words = (
        part.strip() for part in row.split("|")
    )
    headline, phrase = (*(word.strip("-") for word in words), "", "")[:2]
    tolerances = float(absolute), float(relative)
    return Metric(table, name, unit, kind, direction, *tolerances, local == "local", text, headline, phrase)  # type: ignore[arg-type]


# table | name | unit | kind | direction | absolute tolerance | relative tolerance | local or - | what it is [| headline or - [| phrase]]
_ROWS = """
host | cpu_utilization_ratio | ratio | gauge | both | 0.15 | 0.3 | - | share of CPU time that was busy | cpu_ratio
host | cpu_system_ratio | ratio | gauge | high | 0.10 | 0.3 | local | share of CPU time spent in the kernel
host | cpu_iowait_ratio | ratio | gauge | high | 0.10 | 0.3 | local | share of CPU time idle while disk I/O was outstanding
host | cpu_pressure_ratio | ratio | gauge | high | 0.10 | 0.3 | local | share of time some thread waited for a CPU (PSI)
host | memory_utilization_ratio | ratio | gauge | high | 0.10 | 0.15 | local | share of memory in use | memory_ratio
host | memory_pressure_ratio | ratio | gauge | high | 0.05 | 0.3 | local | share of time some thread waited for memory (PSI)
host | io_pressure_ratio | ratio | gauge | high | 0.10 | 0.3 | local | share of time some thread waited for I/O (PSI)
host | disk_utilization_ratio | ratio | gauge | high | 0.20 | 0.3 | - | share of time the busiest disk had work
host | disk_read_bytes_total | bytes | counter | both | 2e7 | 0.5 | - | bytes read from disks
host | disk_write_bytes_total | bytes | counter | both | 2e7 | 0.5 | - | bytes written to disks
host | network_receive_bytes_total | bytes | counter | both | 1e7 | 0.3 | - | bytes received, all interfaces but loopback
host | network_transmit_bytes_total | bytes | counter | both | 1e7 | 0.3 | - | bytes sent, all interfaces but loopback
host | tcp_retransmit_segments_total | segments | counter | high | 20 | 1.0 | - | TCP segments sent again
host | context_switches_total | switches | counter | both | 5e3 | 0.5 | - | context switches
host | processes_running | processes | gauge | high | 4 | 0.5 | local | threads that run or wait for a CPU
gpu | duty_cycle_ratio | ratio | gauge | both | 0.08 | 0.1 | - | share of time a kernel was running (NVML utilization) | gpu_busy_ratio
gpu | power_watts | watts | gauge | both | 25 | 0.08 | - | power draw | gpu_watts | power draw {}
gpu | power_limit_watts | watts | gauge | low | 10 | 0.02 | local | power limit in force
gpu | temperature_celsius | celsius | gauge | high | 8 | 0.1 | local | GPU temperature | - | GPU temperature {}
gpu | memory_temperature_celsius | celsius | gauge | high | 8 | 0.1 | local | memory temperature
gpu | sm_clock_hertz | hertz | gauge | low | 6e7 | 0.04 | local | clock of the streaming multiprocessors | gpu_clock_hertz | multiprocessor clock {}
gpu | memory_clock_hertz | hertz | gauge | low | 6e7 | 0.04 | local | memory clock
gpu | memory_used_bytes | bytes | gauge | both | 2e9 | 0.1 | - | device memory in use
gpu | graphics_active_ratio | ratio | gauge | both | 0.08 | 0.1 | - | share of time the graphics engine was active (GPM)
gpu | sm_active_ratio | ratio | gauge | both | 0.05 | 0.1 | - | share of time an SM had a warp (GPM)
gpu | sm_occupancy_ratio | ratio | gauge | both | 0.05 | 0.1 | - | warps resident over warps possible (GPM)
gpu | tensor_active_ratio | ratio | gauge | both | 0.03 | 0.1 | - | share of time tensor cores were active (GPM)
gpu | dram_active_ratio | ratio | gauge | both | 0.03 | 0.1 | - | share of time device memory was active (GPM)
gpu | fp64_active_ratio | ratio | gauge | both | 0.03 | 0.1 | - | share of time the FP64 pipe was active (GPM)
gpu | fp32_active_ratio | ratio | gauge | both | 0.03 | 0.1 | - | share of time the FP32 pipe was active (GPM)
gpu | fp16_active_ratio | ratio | gauge | both | 0.03 | 0.1 | - | share of time the FP16 pipe was active (GPM)
gpu | pcie_transmit_bytes_total | bytes | counter | both | 5e7 | 0.15 | - | bytes sent over PCIe
gpu | pcie_receive_bytes_total | bytes | counter | both | 5e7 | 0.15 | - | bytes received over PCIe
gpu | nvlink_transmit_bytes_total | bytes | counter | both | 1e8 | 0.15 | - | bytes sent over NVLink
gpu | nvlink_receive_bytes_total | bytes | counter | both | 1e8 | 0.15 | - | bytes received over NVLink
gpu | pcie_generation | generation | gauge | low | 0.5 | 0.0 | local | PCIe generation of the link
gpu | pcie_width | lanes | gauge | low | 0.5 | 0.0 | local | PCIe lanes of the link
gpu | pcie_replay_total | replays | counter | high | 0.5 | 1.0 | local | PCIe packets sent again
gpu | nvlink_errors_total | errors | counter | high | 0.5 | 1.0 | local | NVLink errors of all kinds
gpu | nvlink_crc_errors_total | errors | counter | none | 0 | 0.0 | - | NVLink packets with a wrong checksum
gpu | nvlink_replays_total | replays | counter | none | 0 | 0.0 | - | NVLink packets sent again
gpu | nvlink_recoveries_total | times | counter | none | 0 | 0.0 | - | times an NVLink had to recover
gpu | nvlink_links_up | links | gauge | low | 0.5 | 0.0 | local | NVLinks that are up
gpu | pcie_correctable_errors_total | errors | counter | high | 0.5 | 1.0 | local | PCIe errors that were corrected
gpu | pcie_fatal_errors_total | errors | counter | high | 0.02 | 1.0 | local | PCIe errors that were not corrected, fatal or not
gpu | ecc_corrected_total | errors | counter | high | 0.5 | 1.0 | local | memory errors that ECC corrected
gpu | ecc_uncorrected_total | errors | counter | high | 0.02 | 1.0 | local | memory errors that ECC could not correct
gpu | ecc_corrected_lifetime_total | errors | counter | none | 0 | 0.0 | - | memory errors that ECC corrected since the GPU was made
gpu | ecc_uncorrected_lifetime_total | errors | counter | none | 0 | 0.0 | - | memory errors that ECC could not correct since the GPU was made
gpu | remap_pending | 0 or 1 | gauge | none | 0 | 0.0 | - | whether a memory row is remapped at the next reset
gpu | remap_failed | 0 or 1 | gauge | none | 0 | 0.0 | - | whether a faulty row could not be remapped
gpu | recovery_action | number | gauge | none | 0 | 0.0 | - | what the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset
gpu | remapped_rows | rows | gauge | high | 0.5 | 0.0 | local | memory rows remapped
gpu | throttle_power_seconds_total | seconds | counter | high | 0.10 | 0.5 | local | time clocks were held down for power
gpu | throttle_thermal_seconds_total | seconds | counter | high | 0.05 | 0.5 | local | time clocks were held down for temperature
gpu | throttle_reasons | bits | gauge | none | 0 | 0.0 | - | NVML clock event reasons, a bit mask
gpu | health_failures | bits | gauge | none | 0 | 0.0 | - | systems of the GPU that fail DCGM's health check, a bit mask (dcgmHealthSystems_t)
gpu | health_warnings | bits | gauge | none | 0 | 0.0 | - | systems of which it warns
gpu | energy_joules_total | joules | counter | none | 0 | 0.0 | - | energy drawn
gpu | uuid | text | text | none | 0 | 0 | - | the GPU's own name, reported every 10 s
gpu | parent_uuid | text | text | none | 0 | 0 | - | of a MIG instance: the UUID of its GPU
gpu | serial | text | text | none | 0 | 0 | - | serial number of the board, reported every 10 s
gpu | pci_address | text | text | none | 0 | 0 | - | place on the PCI bus as /sys writes it, reported every 10 s
rdma | transmit_bytes_total | bytes | counter | both | 5e7 | 0.15 | - | bytes sent
rdma | receive_bytes_total | bytes | counter | both | 5e7 | 0.15 | - | bytes received
rdma | transmit_packets_total | packets | counter | both | 5e4 | 0.15 | - | packets sent
rdma | receive_packets_total | packets | counter | both | 5e4 | 0.15 | - | packets received
rdma | transmit_wait_ticks_total | ticks | counter | high | 1e4 | 1.0 | - | ticks with data to send and no credit
rdma | pfc_transmit_frames_total | frames | counter | high | 50 | 1.0 | - | pause frames sent: this port could not drain
rdma | pfc_receive_frames_total | frames | counter | high | 50 | 1.0 | - | pause frames received
rdma | ecn_marked_packets_total | packets | counter | high | 50 | 1.0 | - | packets received with a congestion mark
rdma | cnp_sent_total | packets | counter | high | 50 | 1.0 | - | congestion notifications sent
rdma | cnp_handled_total | packets | counter | high | 50 | 1.0 | - | congestion notifications obeyed
rdma | out_of_sequence_total | packets | counter | high | 5 | 1.0 | - | packets received out of order
rdma | packet_sequence_errors_total | packets | counter | high | 1 | 1.0 | local | negative acknowledgements for lost packets
rdma | ack_timeouts_total | timeouts | counter | high | 0.2 | 1.0 | - | acknowledgements that never came
rdma | symbol_errors_total | errors | counter | high | 0.5 | 1.0 | local | symbol errors on the wire
rdma | link_downed_total | times | counter | high | 0.02 | 0.0 | local | times the link went down
rdma | discards_total | packets | counter | high | 5 | 1.0 | - | packets thrown away
rdma | rate_bits_per_second | bits per second | gauge | low | 1e9 | 0.05 | local | negotiated rate
rdma | link_up | 0 or 1 | gauge | low | 0.5 | 0.0 | local | whether the link is up
nccl | comm | hex | text | none | 0 | 0 | - | identity of the communicator, the same on all its ranks
nccl | rank | number | gauge | none | 0 | 0 | - | rank of this process in the communicator
nccl | ranks | number | gauge | none | 0 | 0 | - | number of ranks of the communicator
nccl | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
nccl | operation | text | text | none | 0 | 0 | - | last operation enqueued: kind:datatype:count
nccl | operations_total | operations | counter | both | 2 | 0.1 | - | operations enqueued | operations_per_second
nccl | bytes_total | bytes | counter | both | 1e6 | 0.1 | - | payload of the operations enqueued, by this rank
nccl | counted_from | text | text | none | 0 | 0 | - | where operations_total begins: birth, memory (both comparable between ranks) or attach
nccl | unsized_total | operations | counter | none | 0 | 0 | - | operations of a datatype that is not known: bytes_total lacks theirs
nccl | groups_total | groups | counter | none | 0 | 0 | - | ncclGroupStart calls of the process
nccl | groups_open | groups | gauge | none | 0 | 0 | - | groups begun and not ended: their operations are not launched yet
nccl | pending | 0 or 1 | gauge | none | 0 | 0 | - | whether the communicator has unfinished work
nccl | replayed | 0 or 1 | gauge | none | 0 | 0 | - | whether its transfers go on without calls: CUDA graphs replay them, operations_total stands
nccl | departs | 0 or 1 | gauge | none | 0 | 0 | - | whether one of the last calls of a process that calls no more differs from what always followed the two calls before it
nccl | idle_seconds | seconds | gauge | none | 0 | 0 | - | time since the last enqueue
nccl | iteration_seconds | seconds | gauge | high | 0.05 | 0.1 | - | inferred period of the operations | iteration_seconds
nccl | host_blocked_seconds_total | seconds | counter | both | 0.08 | 0.25 | - | time from a synchronize call behind an operation to the thread's next call | waiting_ratio | {} waiting for its communicators
nccl | active_ratio | ratio | gauge | both | 0.08 | 0.25 | - | share of samples with an operation in flight, waiting for other ranks included | active_ratio | collectives in flight {} of the time
nccl | send_pending_ratio | ratio | gauge | high | 0.15 | 0.3 | - | share of samples with a chunk handed to the network and not yet delivered | sending_ratio | chunks waiting on the network {} of the time
nccl | receive_pending_ratio | ratio | gauge | none | 0 | 0 | - | share of samples with a chunk awaited from the network
nccl | unsent_ratio | ratio | gauge | none | 0 | 0 | - | share of samples with a chunk that the GPU has made ready, and nothing has moved since the sample before
nccl | steps_posted_total | steps | counter | none | 0 | 0 | - | buffers offered to the GPU for chunks to send, since the agent first saw each connection
nccl | steps_transmitted_total | steps | counter | none | 0 | 0 | - | chunks handed to the network, since then
nccl | steps_done_total | steps | counter | both | 10 | 0.1 | - | chunks sent and through, since then
nccl | steps_received_total | steps | counter | none | 0 | 0 | - | chunks that came from the network, since then
nccl | step | steps | gauge | none | 0 | 0 | - | chunks sent and through when last seen, since the connections were made: the same on ranks of a ring that are equally far
nccl | waits_to_send_to | number | gauge | none | 0 | 0 | - | rank to which a chunk was handed to the network and is not through; of several the least advanced; -1: none
nccl | waits_to_receive_from | number | gauge | none | 0 | 0 | - | rank from which a chunk is awaited; of several the least advanced; -1: none
nccl | waits_for_gpu | 0 or 1 | gauge | none | 0 | 0 | - | whether a transfer is at work, the network has nothing to do for it, and the GPU is not known to have data ready
nccl | waits_for_credit_from | number | gauge | none | 0 | 0 | - | rank for which the GPU has a chunk ready that the network does not accept: it gives no credit; of several the least advanced; -1: none
nccl | waits_channel | number | gauge | none | 0 | 0 | - | channel of the transfer that waits for the network; null: none waits
nccl | waits_net_device | number | gauge | none | 0 | 0 | - | network device of that transfer, by its number in NCCL's own list
nccl | still_seconds | seconds | gauge | none | 0 | 0 | - | for how long no transfer at work has moved; 0: none is at work, or they move
nccl | lost_total | readings | counter | none | 0 | 0 | - | probe hits that could not be counted for this process
cuda | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
cuda | launches_total | calls | counter | both | 50 | 0.2 | - | kernels launched through libcudart
cuda | graph_launches_total | calls | counter | both | 5 | 0.2 | - | CUDA graphs launched
cuda | synchronize_calls_total | calls | counter | none | 0 | 0 | - | synchronize calls
cuda | synchronize_seconds_total | seconds | counter | both | 0.08 | 0.25 | - | time from a synchronize call to the thread's next probed call | - | {} waiting for its GPU
cuda | copy_bytes_total | bytes | counter | both | 1e7 | 0.2 | - | bytes copied
cuda | allocated_bytes | bytes | gauge | none | 0 | 0 | - | device memory asked for since the start, what was freed included
cuda | gc_pauses_total | pauses | counter | high | 0.5 | 1.0 | local | garbage collections of CPython
cuda | gc_seconds_total | seconds | counter | high | 0.03 | 0.5 | local | time in garbage collection | - | {} collecting garbage
cuda | sampled_ratio | ratio | gauge | none | 0 | 0 | - | share of the time in which the probes were on; for the rest their counts are estimated
cuda | startup_phase | text | text | none | 0 | 0 | - | how far the process has come since its start
process | cpu_wait_seconds_total | seconds | counter | high | 0.2 | 0.5 | local | time threads of the GPU's processes were ready to run and had no CPU, added up | - | {} waiting for a CPU, its threads added up
process | disk_wait_seconds_total | seconds | counter | high | 0.2 | 0.5 | local | time threads of the GPU's processes waited for disks and network file systems, added up | - | {} waiting for disks, its threads added up
process | tcp_retransmit_segments_total | segments | counter | high | 20 | 1.0 | - | TCP segments that the GPU's processes had to send again
startup | image_seconds | seconds | gauge | none | 0 | 0 | - | from the creation of its pod's cgroup until that of its container's: image pull and sandbox
startup | container_seconds | seconds | gauge | none | 0 | 0 | - | from the creation of its cgroup until the first process of the job in it
startup | launch_seconds | seconds | gauge | none | 0 | 0 | - | from the first process of the job in its cgroup until its own start: entry point, installation, launcher
startup | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
startup | start_time_seconds | seconds | gauge | none | 0 | 0 | - | when the process started, Unix time
startup | cuda_loaded_seconds | seconds | gauge | none | 0 | 0 | - | from its start until libcudart was seen in its memory
startup | nccl_loaded_seconds | seconds | gauge | none | 0 | 0 | - | from its start until libnccl was seen in its memory
startup | checkpoint_read_seconds | seconds | gauge | none | 0 | 0 | - | time spent reading, between its libraries and its first operation
startup | checkpoint_read_bytes | bytes | gauge | none | 0 | 0 | - | bytes read in that time
startup | communicator_begun_seconds | seconds | gauge | none | 0 | 0 | - | from its start until it asked for its first communicator
startup | communicator_made_seconds | seconds | gauge | none | 0 | 0 | - | from its start until it had its first communicator, seen at its next call
startup | first_operation_seconds | seconds | gauge | none | 0 | 0 | - | from its start until its first operation
start | job_name | text | text | none | 0 | 0 | - | name of its job, as in the table job
stack | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
stack | round | number | gauge | none | 0 | 0 | - | which of the rounds of an order it is of, from 1; null: taken of a process that was stalled
stack | form | text | text | none | 0 | 0 | - | what was read: python (frames of the interpreter), kernel (what the kernel tells of threads) or none
stack | stack | text | text | none | 0 | 0 | - | the process's first thread, one frame a line, the innermost first
stack | threads | text | text | none | 0 | 0 | - | its other threads, those alike together
stack | waits_in | text | text | none | 0 | 0 | - | what the kernel says its first thread is at
stack | still_seconds | seconds | gauge | none | 0 | 0 | - | for how long the process had asked for no operation
stack | error | text | text | none | 0 | 0 | - | why nothing better could be read
profile | pid | number | gauge | none | 0 | 0 | - | process, as the agent's PID namespace numbers it
profile | begin | nanoseconds | gauge | none | 0 | 0 | - | when the window began, as it was asked for
profile | seconds | seconds | gauge | none | 0 | 0 | - | length of the window
profile | late_seconds | seconds | gauge | none | 0 | 0 | - | how long after the window's begin the first sample was taken
profile | processes | number | gauge | none | 0 | 0 | - | processes of the machine in this window
profile | reader | text | text | none | 0 | 0 | - | what took the samples: py-spy, perf (functions on a CPU, native) or none
profile | functions | text | text | none | 0 | 0 | - | class and name of each function of the first thread, one a line
profile | series | text | text | none | 0 | 0 | - | the function of each sample, in order of time: its line from 0 on, and *N for N in a row
profile | cpu_seconds | seconds | gauge | none | 0 | 0 | - | CPU that sampling this process took
profile | error | text | text | none | 0 | 0 | - | why there are no samples, or none of py-spy
ras | comm | hex | text | none | 0 | 0 | - | identity of the communicator, as in nccl
ras | ranks | number | gauge | none | 0 | 0 | - | number of ranks of the communicator
ras | answered | number | gauge | none | 0 | 0 | - | ranks that answered
ras | missing | text | text | none | 0 | 0 | - | ranks that did not
ras | behind | text | text | none | 0 | 0 | - | ranks that launched fewer operations than the first
ras | failed | text | text | none | 0 | 0 | - | ranks with an error, or that were aborted
ras | version | text | text | none | 0 | 0 | - | NCCL's version
ras | collection_seconds | seconds | gauge | none | 0 | 0 | - | how long NCCL took to ask all ranks
ras | error | text | text | none | 0 | 0 | - | why there is no answer
task | task | text | text | none | 0 | 0 | - | which training task the machine works for; our agent leaves it to the table job
nvswitch | temperature_celsius | celsius | gauge | none | 0 | 0 | - | temperature of the switch
nvswitch | fatal_sxid | number | gauge | none | 0 | 0 | - | the last fatal SXid, but for those that a reset of a GPU causes; 0: none
nvswitch | nonfatal_sxid | number | gauge | none | 0 | 0 | - | the last SXid that is not fatal; 0: none
nvswitch | reset_required | 0 or 1 | gauge | none | 0 | 0 | - | whether the switch asks to be reset
nvswitch | links_up | links | gauge | none | 0 | 0 | - | NVLinks of the switch that are active
nvswitch | fatal_errors_total | errors | counter | none | 0 | 0 | - | fatal errors of its links
nvswitch | nonfatal_errors_total | errors | counter | none | 0 | 0 | - | errors of its links that are not fatal
nvswitch | link_replays_total | replays | counter | none | 0 | 0 | - | packets that its links sent again
nvswitch | link_recoveries_total | times | counter | none | 0 | 0 | - | times that its links had to recover
nvswitch | link_crc_errors_total | errors | counter | none | 0 | 0 | - | packets of its links with a wrong checksum
nvswitch | link_ecc_errors_total | errors | counter | none | 0 | 0 | - | errors of its links that ECC found
nvswitch | health_failures | bits | gauge | none | 0 | 0 | - | systems of the switch that fail DCGM's health check, a bit mask (dcgmHealthSystems_t)
nvswitch | health_warnings | bits | gauge | none | 0 | 0 | - | systems of which it warns
job_log | step | steps | gauge | none | 0 | 0 | - | the last step
job_log | step_seconds | seconds | gauge | none | 0 | 0 | - | time of a step: as the job says, else between steps
job_log | loss | number | gauge | none | 0 | 0 | - | the last loss
job_log | gradient_norm | number | gauge | none | 0 | 0 | - | the last gradient norm
job_log | nan_total | values | counter | none | 0 | 0 | - | losses and gradient norms that were no number
job_log | mfu_ratio | ratio | gauge | none | 0 | 0 | - | model FLOPs of a step over what the job's GPUs could do in its time
job_log | checkpoint_age_seconds | seconds | gauge | none | 0 | 0 | - | since the newest checkpoint was changed
job_log | skipped_bytes_total | bytes | counter | none | 0 | 0 | - | bytes of the log left out because too many came at once
job_log | error | text | text | none | 0 | 0 | - | why something could not be read
card | uuid | text | text | none | 0 | 0 | - | the GPU's own name
card | serial | text | text | none | 0 | 0 | - | serial number of the board
card | pci_address | text | text | none | 0 | 0 | - | place on the PCI bus
check | outcome | text | text | none | 0 | 0 | - | passed, failed, error (no result), cut off (by its time limit) or missing (no tool)
check | value | number | gauge | none | 0 | 0 | - | what the check measured, if it measures
check | measure | text | text | none | 0 | 0 | - | unit of the value
check | duration_seconds | seconds | gauge | none | 0 | 0 | - | how long it took
check | device | text | text | none | 0 | 0 | - | the device that failed, such as gpu:3
check | message | text | text | none | 0 | 0 | - | what the tool reported, in a line
event | message | text | text | none | 0 | 0 | - | what happened, in words
event | device | text | text | none | 0 | 0 | - | the device that is meant, such as gpu:3
event | severity | text | text | none | 0 | 0 | - | info, warn or crit
event | signature | text | text | none | 0 | 0 | - | of what the detector or the operator has written: HMAC-SHA256 with the signing key
event | until | nanoseconds | gauge | none | 0 | 0 | - | when a maintenance is to end, where the operator has said so, or a zoom
event | begin | nanoseconds | gauge | none | 0 | 0 | - | when a maintenance is to begin, where that is not the row's time
event | every | nanoseconds | gauge | none | 0 | 0 | - | how long after its beginning a maintenance begins again
event | times | number | gauge | none | 0 | 0 | - | how many times such a maintenance begins in all
event | hertz | readings per second | gauge | none | 0 | 0 | - | how often the detector asks to read the source that the message names
source | success | 0 or 1 | gauge | none | 0 | 0 | - | whether the last reading worked
source | duration_seconds | seconds | gauge | none | 0 | 0 | - | how long the last reading took
source | failures_total | readings | counter | none | 0 | 0 | - | readings that failed
source | lost_total | readings | counter | none | 0 | 0 | - | probe hits that could not be counted (source kernel)
source | zoomed_seconds_total | seconds | counter | none | 0 | 0 | - | time in which a source was read many times a second (source zoom)
source | refused_total | orders | counter | none | 0 | 0 | - | orders to do so that were refused (source zoom)
source | foreign_total | readings | counter | none | 0 | 0 | - | probe hits of processes outside of the agent's PID namespace (source kernel)
source | waiting_rows | rows | gauge | none | 0 | 0 | - | rows that wait on disk for the server (source spool)
source | waiting_bytes | bytes | gauge | none | 0 | 0 | - | what they take, packed (source spool)
source | dropped_rows_total | rows | counter | none | 0 | 0 | - | rows that waited too long, or were too many (source spool)
source | refused_rows_total | rows | counter | none | 0 | 0 | - | rows that the server refused (source spool)
source | error | text | text | none | 0 | 0 | - | why the last reading failed
source | unavailable | text | text | none | 0 | 0 | - | why this machine has nothing for it to read
probe | state | text | text | none | 0 | 0 | - | on, blocked or gone
probe | reason | text | text | none | 0 | 0 | - | why it is not on, or not on every function
probe | symbols | number | gauge | none | 0 | 0 | - | functions that carry a probe
probe | suspended | number | gauge | none | 0 | 0 | - | groups of functions that carry no probe now, to hold agent.probe_share
probe | hit_seconds | seconds | gauge | none | 0 | 0 | - | time that one hit of its dearest probes takes from the process, measured at the agent's start
probe | core_ratio | ratio | gauge | none | 0 | 0 | - | share of a core that its probes take of the process that loses the most
probe | path | text | text | none | 0 | 0 | - | where the library was seen
verdict | device | text | text | none | 0 | 0 | - | the device that is meant, such as gpu:3
verdict | kind | text | text | none | 0 | 0 | - | the method that found it: peer, evidence, progress
verdict | metric | text | text | none | 0 | 0 | - | the metric that deviates most
verdict | score | score | gauge | none | 0 | 0 | - | how far from the peers, in multiples of what raises an alarm
verdict | since | nanoseconds | gauge | none | 0 | 0 | - | when the pattern began
verdict | level | text | text | none | 0 | 0 | - | crit, warn or ok
verdict | message | text | text | none | 0 | 0 | - | the verdict in words
verdict | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key (docs/security.md)
lease | holder | text | text | none | 0 | 0 | - | the detector that holds the term: host, process, and a random part
lease | term | terms | counter | none | 0 | 0 | - | number of the term: of two holders the one with the later term speaks
lease | beat | renewals | counter | none | 0 | 0 | - | how often the term was renewed; 0: claimed, and not held yet
lease | until | nanoseconds | gauge | none | 0 | 0 | - | when the term lapses unless it is renewed, by the holder's clock; 0: given back
lease | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key
threshold | asked | pages | gauge | none | 0 | 0 | - | false pages in 1,000 machine-hours that are asked for; 0: built-in thresholds
threshold | machine_hours | hours | gauge | none | 0 | 0 | - | machine-hours of health in the last week
threshold | excursions | excursions | gauge | none | 0 | 0 | - | excursions of that time that are remembered
threshold | readings | readings | gauge | none | 0 | 0 | - | readings with a threshold that is learned
threshold | raised | readings | gauge | none | 0 | 0 | - | those with a higher threshold than the built-in one
threshold | lowered | readings | gauge | none | 0 | 0 | - | those with a lower one
threshold | bounded | readings | gauge | none | 0 | 0 | - | those that would need more than the highest threshold that is allowed
threshold | trust | ratio | gauge | none | 0 | 0 | - | share of the way down to lower thresholds that is gone
threshold | message | text | text | none | 0 | 0 | - | the same in one line
delivery | incident | text | text | none | 0 | 0 | - | key of the incident
delivery | level | text | text | none | 0 | 0 | - | the level that was sent; ok: its end
delivery | message | text | text | none | 0 | 0 | - | of an alert that Peerwatch is blind, the verdict as JSON
delivery | signature | text | text | none | 0 | 0 | - | HMAC-SHA256 of the row with the signing key
"""

METRICS: dict[str, Metric] = {metric.key: metric for metric in map(_metric, _ROWS.strip().splitlines())}
METRICS |= {
    copy.key: copy
    for metric in tuple(METRICS.values())
    if metric.table in ZOOMED
    for copy in [replace(metric, table=f"{metric.table}{ZOOM}", direction="none", local=False, headline="")]
}
METRICS |= {
    copy.key: copy
    for metric in tuple(METRICS.values())
    if metric.table == "startup"
    for copy in [replace(metric, table="start")]
}
METRICS |= {
    f"{table}.{name}": Metric(table, name, "text", "text", "none", 0.0, 0.0, False, text)
    for table in ("job", "verdict")
    for name, text in JOB.items()
}
LOCAL: frozenset[str] = frozenset(metric.key for metric in METRICS.values() if metric.local)
"""Keys of the metrics that only the machine's own state moves."""
