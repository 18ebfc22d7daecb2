"""Metrics of what a machine has: the operating system, GPUs, RDMA ports, NVSwitches.

The columns of a row are those of store/schema/catalogue.py.
"""

ROWS = """
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
card | uuid | text | text | none | 0 | 0 | - | the GPU's own name
card | serial | text | text | none | 0 | 0 | - | serial number of the board
card | pci_address | text | text | none | 0 | 0 | - | place on the PCI bus
"""
