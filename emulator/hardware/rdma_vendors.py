"""What the kernel's RDMA drivers show of a port: names of files and statistics, as each driver writes them.

Sources, all in the Linux kernel: drivers/infiniband/core/sysfs.c and, below drivers/infiniband/hw, mlx5/counters.c,
bnxt_re/hw_counters.c, irdma/verbs.c, efa/efa_verbs.c; the ethtool statistics of mlx5, bnxt_en and ice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PMA = """symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors
port_rcv_switch_relay_errors port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors
local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped port_xmit_data port_rcv_data
port_xmit_packets port_rcv_packets port_xmit_wait unicast_xmit_packets unicast_rcv_packets multicast_xmit_packets
multicast_rcv_packets"""
_MLX5 = """rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence
duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err resp_local_length_error
resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors resp_remote_access_errors
resp_cqe_flush_error req_cqe_flush_error req_transport_retries_exceeded req_rnr_retries_exceeded roce_adp_retrans
roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans"""
_MLX5_ROCE = "rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent rx_icrc_encapsulated"
_MLX5_ETHTOOL = """rx_packets rx_bytes rx0_packets rx0_bytes rx_out_of_buffer link_down_events_phy rx_discards_phy
tx_discards_phy rx_symbol_err_phy rx_pcs_symbol_err_phy rx_pause_ctrl_phy tx_pause_ctrl_phy rx_prio0_pause
rx_prio0_pause_duration rx_prio3_pause rx_prio3_pause_duration tx_prio0_pause tx_prio0_pause_duration tx_prio3_pause
tx_prio3_pause_duration rx_prio3_discards tx_pause_storm_warning_events tx_pause_storm_error_events"""
_BNXT = """active_pds active_ahs active_qps active_srqs active_cqs active_mrs active_mws rx_pkts rx_bytes tx_pkts
tx_bytes recoverable_errors tx_roce_errors tx_roce_discards rx_roce_errors rx_roce_discards to_retransmits
seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd missing_resp unrecoverable_err bad_resp_err local_qp_op_err
local_protection_err mem_mgmt_op_err remote_invalid_req_err remote_access_err remote_op_err dup_req res_exceed_max
res_length_mismatch
res_exceeds_wqe res_opcode_err res_rx_invalid_rkey res_rx_domain_err res_rx_no_perm res_rx_range_err res_tx_invalid_rkey
res_tx_domain_err res_tx_no_perm res_tx_range_err res_irrq_oflow res_unsup_opcode res_unaligned_atomic res_rem_inv_err
res_mem_err res_srq_err res_cmp_err res_invalid_dup_rkey res_wqe_format_err res_cq_load_err res_srq_load_err
res_tx_pci_err res_rx_pci_err oos_drop_count tx_cnp_pkts rx_cnp_pkts rx_ecn_marked_pkts pacing_reschedule
pacing_complete pacing_alerts db_fifo_register"""
_BNXT_ETHTOOL = """[0]: rx_ucast_packets|rx_pause_frames|tx_pause_frames|rx_pfc_frames|tx_pfc_frames
rx_pfc_ena_frames_pri3|rx_pfc_ena_frames_pri5|tx_pfc_ena_frames_pri3|tx_pfc_ena_frames_pri5|pfc_pri3_rx_transitions|link_down_events"""
_IRDMA = """ip4InDiscards|ip4InReasmRqd|ip4InMcastPkts|ip4InOctets|ip4InPkts|ip4OutOctets|ip4OutPkts|ip6InDiscards
ip6InOctets|ip6InPkts|ip6OutOctets|ip6OutPkts|InRdmaReads|InRdmaSends|InRdmaWrites|OutRdmaReads|OutRdmaSends
OutRdmaWrites|RdmaBnd|RdmaInv|cnpHandled|cnpIgnored|cnpSent|RxUDP|TxUDP|RxECNMrkd|RetransSegs|InProtoErrors|RNR sent
Nak Sequence Error|Nak Sequence Error Implied|RTO|Rcvd Out of order packets|CRC errors"""
_ICE_ETHTOOL = """rx_queue_0_packets|link_xon_rx.nic|link_xoff_rx.nic|rx_dropped.nic|rx_crc_errors.nic
rx_priority_3_xoff.nic|rx_priority_4_xoff.nic|tx_priority_3_xoff.nic|tx_priority_4_xoff.nic|rx_priority_3_xon.nic"""
_EFA = """tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes send_wrs recv_bytes recv_wrs rdma_read_wrs
rdma_read_bytes rdma_read_wr_err rdma_read_resp_bytes rdma_write_wrs rdma_write_bytes rdma_write_wr_err
rdma_write_recv_bytes retrans_bytes retrans_pkts retrans_timeout_events impaired_remote_conn_events
unresponsive_remote_events"""
_EFA_DEVICE = """submitted_cmds completed_cmds cmds_err no_completion_cmds keep_alive_rcvd alloc_pd_err create_qp_err
create_cq_err reg_mr_err alloc_ucontext_err create_ah_err mmap_err"""

BITS = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_wait": 32,
}
"""How wide the narrow counters are: there they stay at their largest value (InfiniBand specification, 16.1.3.5)."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One driver's view of a port. `words` gives, for a word of `Ports.add`, the file that counts it and its unit."""

    device: str
    link_layer: str
    rate: str
    counters: tuple[str, ...]
    hw_counters: tuple[str, ...]
    words: Mapping[str, tuple[str, int]]
    device_counters: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()
    """Names of ethtool statistics; none where the device has no network interface."""
    interface: str = ""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.replace("\n", "|").split("|")) if "|" in text else tuple(text.split())


_PMA_WORDS = {
    "transmit_bytes": ("port_xmit_data", 4),
    "receive_bytes": ("port_rcv_data", 4),
    "transmit_packets": ("port_xmit_packets", 1),
    "receive_packets": ("port_rcv_packets", 1),
    "transmit_wait_ticks": ("port_xmit_wait", 1),
    "symbol_errors": ("symbol_error", 1),
    "link_downed": ("link_downed", 1),
    "discards": ("port_xmit_discards", 1),
    "out_of_sequence": ("out_of_sequence", 1),
    "packet_sequence_errors": ("packet_seq_err", 1),
    "ack_timeouts": ("local_ack_timeout_err", 1),
}
_ROCE_WORDS = _PMA_WORDS | {
    "ecn_marked_packets": ("np_ecn_marked_roce_packets", 1),
    "cnp_sent": ("np_cnp_sent", 1),
    "cnp_handled": ("rp_cnp_handled", 1),
    "pfc_transmit_frames": ("tx_prio3_pause", 1),
    "pfc_receive_frames": ("rx_prio3_pause", 1),
    "discards": ("rx_discards_phy", 1),
    "symbol_errors": ("rx_pcs_symbol_err_phy", 1),
    "link_downed": ("carrier_down_count", 1),
}
_BNXT_WORDS = {
    "transmit_bytes": ("tx_bytes", 1),
    "receive_bytes": ("rx_bytes", 1),
    "transmit_packets": ("tx_pkts", 1),
    "receive_packets": ("rx_pkts", 1),
    "ecn_marked_packets": ("rx_ecn_marked_pkts", 1),
    "cnp_sent": ("tx_cnp_pkts", 1),
    "cnp_handled": ("rx_cnp_pkts", 1),
    "out_of_sequence": ("oos_drop_count", 1),
    "packet_sequence_errors": ("seq_err_naks_rcvd", 1),
    "ack_timeouts": ("to_retransmits", 1),
    "discards": ("rx_roce_discards", 1),
    "pfc_transmit_frames": ("tx_pfc_ena_frames_pri3", 1),
    "pfc_receive_frames": ("rx_pfc_ena_frames_pri3", 1),
    "link_downed": ("carrier_down_count", 1),
}
_IRDMA_WORDS = {
    "transmit_bytes": ("ip4OutOctets", 1),
    "receive_bytes": ("ip4InOctets", 1),
    "transmit_packets": ("ip4OutPkts", 1),
    "receive_packets": ("ip4InPkts", 1),
    "ecn_marked_packets": ("RxECNMrkd", 1),
    "cnp_sent": ("cnpSent", 1),
    "cnp_handled": ("cnpHandled", 1),
    "out_of_sequence": ("Rcvd Out of order packets", 1),
    "packet_sequence_errors": ("Nak Sequence Error", 1),
    "ack_timeouts": ("RTO", 1),
    "discards": ("ip4InDiscards", 1),
    "pfc_transmit_frames": ("tx_priority_3_xoff.nic", 1),
    "pfc_receive_frames": ("rx_priority_3_xoff.nic", 1),
    "link_downed": ("carrier_down_count", 1),
}
_EFA_WORDS = {
    "transmit_bytes": ("tx_bytes", 1),
    "receive_bytes": ("rx_bytes", 1),
    "transmit_packets": ("tx_pkts", 1),
    "receive_packets": ("rx_pkts", 1),
    "discards": ("rx_drops", 1),
    "ack_timeouts": ("retrans_timeout_events", 1),
}

VENDORS: dict[str, Vendor] = {
    "mlx5_ib": Vendor(
        "mlx5_{}", "InfiniBand", "400 Gb/sec (4X NDR)", _split(_PMA), _split(_MLX5), _PMA_WORDS, _split(_MLX5)
    ),
    "mlx5_roce": Vendor(
        "mlx5_{}",
        "Ethernet",
        "400 Gb/sec (4X NDR)",
        _split(_PMA),
        _split(f"{_MLX5} {_MLX5_ROCE}"),
        _ROCE_WORDS,
        _split(f"{_MLX5} {_MLX5_ROCE}"),
        _split(_MLX5_ETHTOOL),
        "emu{}np0",
    ),
    "bnxt_re": Vendor(
        "bnxt_re{}",
        "Ethernet",
        "200 Gb/sec (4X HDR)",
        (),
        _split(_BNXT),
        _BNXT_WORDS,
        statistics=_split(_BNXT_ETHTOOL),
        interface="emu{}f0np0",
    ),
    "irdma": Vendor(
        "irdma{}",
        "Ethernet",
        "100 Gb/sec (4X EDR)",
        (),
        _split(_IRDMA),
        _IRDMA_WORDS,
        statistics=_split(_ICE_ETHTOOL),
        interface="emu{}f1",
    ),
    "efa": Vendor("efa_{}", "Unspecified", "100 Gb/sec (4X EDR)", (), _split(_EFA), _EFA_WORDS, _split(_EFA_DEVICE)),
}
