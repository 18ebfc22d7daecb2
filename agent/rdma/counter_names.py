"""Maps the columns of the table `rdma` to the files and statistics of a port, by the names that its driver uses."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

# column | what counts it, best first; "+" adds what is there, "4 *" is a unit, "#" stands for priorities 0 to 7.
# Names of mlx5, bnxt_re, irdma, efa, mana, ionic, hns, erdma (drivers/infiniband/hw) and, for statistics of the network
# interface, mlx5, bnxt_en, ice, ionic, hns3 (drivers/net/ethernet). On Ethernet a port's own link_downed and
# symbol_error mostly stand still, so the interface is asked first; port_xmit_discards has 16 bits, so it is asked last.
_ROWS = """
transmit_bytes_total | 4 * port_xmit_data | tx_bytes | tx_rdma_ucast_bytes + tx_rdma_mcast_bytes | ip4OutOctets + ip6OutOctets | tx_bytes_cnt | hw_tx_bytes_cnt
receive_bytes_total | 4 * port_rcv_data | rx_bytes | rx_rdma_ucast_bytes + rx_rdma_mcast_bytes | ip4InOctets + ip6InOctets | rx_bytes_cnt | hw_rx_bytes_cnt
transmit_packets_total | port_xmit_packets | tx_pkts | tx_packets | tx_rdma_ucast_pkts + tx_rdma_mcast_pkts | ip4OutPkts + ip6OutPkts | tx_pkt | tx_packets_cnt | hw_tx_packets_cnt
receive_packets_total | port_rcv_packets | rx_pkts | rx_packets | rx_rdma_ucast_pkts + rx_rdma_mcast_pkts | ip4InPkts + ip6InPkts | rx_pkt | rx_packets_cnt | hw_rx_packets_cnt
transmit_wait_ticks_total | port_xmit_wait
pfc_transmit_frames_total | tx_prio#_pause | tx_pfc_ena_frames_pri# | tx_priority_#_xoff.nic | mac_tx_pfc_pri#_pkt_num | frames_tx_pripause# | frames_tx_pripause | tx_global_pause | tx_pause_ctrl_phy | tx_pause_frames | link_xoff_tx.nic
pfc_receive_frames_total | rx_prio#_pause | rx_pfc_ena_frames_pri# | rx_priority_#_xoff.nic | mac_rx_pfc_pri#_pkt_num | frames_rx_pripause# | frames_rx_pripause | rx_global_pause | rx_pause_ctrl_phy | rx_pause_frames | link_xoff_rx.nic
ecn_marked_packets_total | np_ecn_marked_roce_packets | rx_ecn_marked_pkts | RxECNMrkd | rx_rdma_ecn_pkts | received_ecns
cnp_sent_total | np_cnp_sent | np_cnp_pkts | tx_cnp_pkts | cnpSent | tx_rdma_cnp_pkts | tx_cnp_pkt | sent_cnps
cnp_handled_total | rp_cnp_handled | rx_cnp_pkts | cnpHandled | rx_rdma_cnp_pkts | rx_cnp_pkt | received_cnps
out_of_sequence_total | out_of_sequence | oos_drop_count | responder_oos | Rcvd Out of order packets | resp_rx_outouf_seq
packet_sequence_errors_total | packet_seq_err | seq_err_naks_rcvd | requester_oos_nak | Nak Sequence Error | req_rx_pkt_seq_err
ack_timeouts_total | local_ack_timeout_err | to_retransmits | requester_timeout | RTO | tx_rdma_ack_timeout | retrans_timeout_events
symbol_errors_total | rx_pcs_symbol_err_phy | rx_symbol_err_phy | symbol_error
link_downed_total | carrier_down_count + carrier_down_count_2 | link_down_events_phy | link_down_events | link_downed
discards_total | tx_roce_discards + rx_roce_discards | rx_drops | ip4InDiscards + ip6InDiscards | rx_discards_phy + tx_discards_phy | port_xmit_discards
"""  # noqa: E501 - one column a line

# InfiniBand's narrow counters stay at their largest value (specification, PortCounters); port_* have 64 bits on newer
# devices, where this very value passes by in a moment.
FULL = {
    name: (1 << bits) - 1
    for bits, names in {
        4: "local_link_integrity_errors excessive_buffer_overrun_errors",
        8: "link_error_recovery link_downed port_xmit_constraint_errors port_rcv_constraint_errors",
        16: "symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
        "port_xmit_discards VL15_dropped",
        32: "port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets port_xmit_wait",
    }.items()
    for name in names.split()
}
"""The value at which a counter says no more than: this much, or anything above."""
_UNFIT = re.compile(r"[^a-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Term:
    """One counter of a column, and how many of the column's units it counts."""

    name: str
    unit: int


def _terms(text: str) -> tuple[Term, ...]:
    terms = []
    for part in text.split(" + "):
        unit, _, name = part.rpartition(" * ")
        names = [name.strip().replace("#", str(n)) for n in range(8)] if "#" in name else [name.strip()]
        terms += [Term(each, int(unit or 1)) for each in names]
    return tuple(terms)


COLUMNS: dict[str, tuple[tuple[Term, ...], ...]] = {
    words[0].strip(): tuple(_terms(word) for word in words[1:])
    for words in (line.split("|") for line in _ROWS.strip().splitlines())
}
KNOWN = frozenset(term.name for ways in COLUMNS.values() for terms in ways for term in terms)


def plan(names: Collection[str]) -> dict[str, tuple[Term, ...]]:
    """By column, the best counters that are among these names; columns that nothing counts are left out."""
    return {column: terms for column, ways in COLUMNS.items() for terms in _first(ways, names)}


def _first(ways: tuple[tuple[Term, ...], ...], names: Collection[str]) -> Iterator[tuple[Term, ...]]:
    for terms in ways:
        found = tuple(term for term in terms if term.name in names)
        if found:
            yield found
            return


@lru_cache(maxsize=4096)
def column_of(name: str) -> str | None:
    """A counter's own name as the store can keep it: lower case, digits, underscores; None where nothing is left."""
    fit = _UNFIT.sub("_", name.lower()).strip("_")[:80]
    if not fit:
        return None
    fit = fit if fit[0].isalpha() else f"n_{fit}"
    return f"{fit}_count" if fit in _TAKEN else fit


_TAKEN = frozenset((*COLUMNS, "time", "machine", "port", "link_up", "rate_bits_per_second"))
