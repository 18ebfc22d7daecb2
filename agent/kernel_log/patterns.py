"""The meaning of lines of the kernel log: one row of a table each.

Every pattern begins where the line does, so that no name of a process or mount can pretend to be a driver. What was
corrected is information, what a program or a server elsewhere may have caused is a warning, and only what this
machine's hardware did beyond repair is critical.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agent.system.events import Severity

_MESSAGE = 240
_PCI = r"(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_DRIVER = rf"[\w-]{{1,32}} {_PCI}"
_HARDWARE = r"\[Hardware Error\]"
_LOOSE = ("loop", "ram", "zram", "nbd", "sr", "fd")
"""Disks with failures that say nothing of the machine."""

# part of the line | code | severity | pattern from the line's beginning
_ROWS = rf"""
 Bus Error: | aer | info | {_DRIVER}: (?:AER: )?(?:PCIe|CXL) Bus Error: severity=Correct
 Bus Error: | aer | warn | {_DRIVER}: (?:AER: )?(?:PCIe|CXL) Bus Error: severity=\w+ \(Non-Fatal\)
 Bus Error: | aer | crit | {_DRIVER}: (?:AER: )?(?:PCIe|CXL) Bus Error: severity=\w+ \(Fatal\)
AER:  | aer | warn | [\w-]+ [0-9a-f:.]+: AER: (?:Multiple )?Uncorrect\w+ \(Non-Fatal\) error [\w ]+:? {_PCI}
AER:  | aer | crit | [\w-]+ [0-9a-f:.]+: AER: (?:Multiple )?Uncorrect\w+ \(Fatal\) error [\w ]+:? {_PCI}
pciehp: | pcie_link_down | warn | pcieport {_PCI}: pciehp: Slot\(\S{{1,16}}\): Link Down
[Hardware Error] | mce | crit | mce: {_HARDWARE}: CPU \d+: Machine Check Exception:
[Hardware Error] | mce | info | mce: {_HARDWARE}: CPU \d+: Machine Check: \d+ Bank \d+: (?P<status>[0-9a-f]{{16}})
[Hardware Error] | mce | info | (?:mce: )?{_HARDWARE}: (?:Corrected|Deferred|Machine check events logged)
[Hardware Error] | mce | warn | (?:mce: )?{_HARDWARE}: Uncorrected, software
[Hardware Error] | mce | crit | (?:mce: )?{_HARDWARE}: System Fatal error
[Hardware Error] | mce | info | \{{\d+\}}{_HARDWARE}: event severity: corrected
[Hardware Error] | mce | warn | \{{\d+\}}{_HARDWARE}: event severity: recoverable
[Hardware Error] | mce | crit | \{{\d+\}}{_HARDWARE}: event severity: fatal
Uncorrected hardware memory error | mce | crit | mce: Uncorrected hardware memory error in user-access
Memory failure: | mce | warn | Memory failure: 0x[0-9a-f]+: recovery action for
EDAC MC | edac | info | EDAC MC\d+: \d+ CE\b
EDAC MC | edac | crit | EDAC MC\d+: \d+ UE\b
temperature | cpu_throttle | warn | (?:mce: )?CPU\d+: (?:Core|Package) temperature(?: is)? above threshold
ink  | link_down | warn | {_DRIVER} (?P<net>[^\s:]{{1,15}}): (?:\w+: \S+ )?(?:NIC )?[Ll]ink (?:is )?[Dd]own
ink  | link_up | info | {_DRIVER} (?P<net>[^\s:]{{1,15}}): (?:\w+: \S+ )?(?:NIC )?[Ll]ink (?:is )?[Uu]p
Link  | link_down | warn | mlx5_core {_PCI} (?P<rdma>\w{{1,32}}): Port: (?P<port>\d{{1,3}}) Link DOWN
Link  | link_up | info | mlx5_core {_PCI} (?P<rdma>\w{{1,32}}): Port: (?P<port>\d{{1,3}}) Link ACTIVE
mlx5_core | nic_failed | crit | mlx5_core {_PCI}: [^;]*device's health compromised
mlx5_core | nic_health | warn | mlx5_core {_PCI}: [^;]*Health issue observed
mlx5_core | nic_power | warn | mlx5_core {_PCI}: [^;]*insufficient power on the PCIe slot
mlx5_core | nic_module | warn | mlx5_core {_PCI}: Port module event(?:\[error\]|: module \d+, Cable unplugged)
out of memory: | oom_kill | warn | Memory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d{{1,10}})
Out of memory: | oom_kill | warn | Out of memory: Kill(?:ed)? process (?P<pid>\d{{1,10}})
blocked | hung_task | warn | INFO: task .{{1,32}}:(?P<pid>\d{{1,10}}) blocked (?:in I/O wait )?for more than
soft lockup | soft_lockup | warn | (?:NMI )?(?:watchdog: )?BUG: soft lockup - CPU#\d+ stuck
hard LOCKUP | hard_lockup | crit | (?:NMI )?watchdog: (?:CPU\d+: )?Watchdog detected hard LOCKUP
detected  | rcu_stall | warn | rcu: INFO: rcu_\w+ (?:self-)?detected (?:expedited )?stall
EXT4-fs | fs_error | warn | EXT4-fs error \(device (?P<disk>[\w.-]{{1,32}})\)
EXT4-fs | fs_lost | crit | EXT4-fs \((?P<disk>[\w.-]{{1,32}})\): Remounting filesystem read-only
XFS ( | fs_lost | crit | XFS \((?P<disk>[\w.-]{{1,32}})\): [^;]*(?:has been shut down|[Ss]hutting down filesystem)
XFS ( | fs_error | warn | XFS \((?P<disk>[\w.-]{{1,32}})\): (?:[Mm]etadata corruption|\w+ I/O error|Corruption)
BTRFS | fs_error | warn | BTRFS (?:critical|error) \(device (?P<disk>[\w.-]{{1,32}})
error, dev | io_error | warn | (?:\w+: )?(?:I/O|critical \w+) error, dev (?P<disk>\w{{1,32}}),
nvme | disk_timeout | warn | nvme (?P<disk>nvme\d+): I/O [^;]*timeout
nvme | disk_lost | crit | nvme (?P<disk>nvme\d+): Disabling device after reset failure
nfs: server | nfs_stalled | warn | nfs: server \S{{1,80}} (?:not responding|timed out)
nfs: server | nfs_resumed | info | nfs: server \S{{1,80}} OK
Lustre | lustre_error | warn | LustreError: [^;]*(?:operation \w+ to node|evicted by)
Lustre | lustre_lost | warn | Lustre: \S{{1,80}}: Connection to \S{{1,80}} [^;]*was lost
Lustre | lustre_resumed | info | Lustre: \S{{1,80}}: Connection restored to
RmInitAdapter | gpu_not_initialised | warn | NVRM: GPU {_PCI}: RmInitAdapter failed
segfault | segfault | info | .{{1,16}}\[(?P<pid>\d{{1,10}})\]: segfault at [^;]* in lib(?:nccl|cuda)
"""
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,18})\): (\d{1,5})(?:, (.*))?")
_SXID = re.compile(r"nvidia-nvswitch(\d{1,3}): SXid \(PCI:[0-9a-fA-F:.]{7,18}\): (\d{1,6}), (Non-fatal|Fatal)\b(.*)")
_LOST = re.compile(r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-f]{4,8}:[0-9a-f:]{5}(?:\.[0-7])?)")
_RESET = frozenset({20034, 22013})
"""Switch errors that every reset of a GPU causes (Fabric Manager user guide)."""


@dataclass(frozen=True, slots=True)
class Fact:
    """What one line tells."""

    code: str
    severity: Severity
    message: str
    kind: str = ""
    """What `place` is: pci (an address), net (an interface), rdma (a port), disk, pid, nvswitch; empty: no device."""
    place: str = ""
    xid: int | None = None
    """An Xid is judged in the light of others; `message` is what the driver wrote behind it."""


@dataclass(frozen=True, slots=True)
class _Rule:
    code: str
    severity: Severity
    pattern: re.Pattern[str]


def _rules() -> dict[str, list[_Rule]]:
    found: dict[str, list[_Rule]] = {}
    for row in _ROWS.strip("\n").splitlines():
        needle, code, severity, pattern = row.split(" | ", 3)
        found.setdefault(needle, []).append(_Rule(code, severity, re.compile(pattern)))  # type: ignore[arg-type]
    return found


_RULES = _rules()


def codes() -> dict[str, Severity]:
    """Code of an event -> the worst severity that a line gives it; without Xids and switch errors."""
    order: tuple[Severity, ...] = ("info", "warn", "crit")
    found: dict[str, Severity] = {}
    for rule in (rule for rules in _RULES.values() for rule in rules):
        found[rule.code] = max(found.get(rule.code, "info"), rule.severity, key=order.index)
    return found


def read(text: str) -> Fact | None:
    """What a line tells; None for the many that tell nothing of faults."""
    if text.startswith(("NVRM: ", "nvidia-nvswitch")):
        fact = _driver(text)
        if fact is not None:
            return fact
    for needle, rules in _RULES.items():
        if needle in text:
            for rule in rules:
                found = rule.pattern.match(text)
                if found:
                    return _fact(rule, found, text)
    return None


def _fact(rule: _Rule, found: re.Match[str], text: str) -> Fact:
    groups = found.groupdict()
    fact = Fact(rule.code, rule.severity, text[:_MESSAGE])
    if groups.get("status"):
        status = int(groups["status"], 16)
        # IA32_MCi_STATUS: bit 61 uncorrected, bit 57 processor context corrupt (Intel SDM 3B, 15.3.2.2)
        severity: Severity = ("crit" if status >> 57 & 1 else "warn") if status >> 61 & 1 else "info"
        return replace(fact, severity=severity)
    if groups.get("rdma"):
        return replace(fact, kind="rdma", place=f"{groups['rdma']}/{groups['port']}")
    kind = next((kind for kind in ("net", "disk", "pid", "pci") if groups.get(kind)), "")
    loose = kind == "disk" and groups[kind].startswith(_LOOSE) and rule.severity == "crit"
    return replace(fact, kind=kind, place=groups.get(kind) or "", severity="warn" if loose else rule.severity)


def _driver(text: str) -> Fact | None:
    """Lines of NVIDIA's drivers."""
    xid = _XID.match(text)
    if xid:
        return Fact(f"xid:{int(xid[2])}", "info", (xid[3] or "")[:_MESSAGE], "pci", xid[1], int(xid[2]))
    sxid = _SXID.match(text)
    if sxid:
        severity: Severity = "crit" if sxid[3] == "Fatal" and int(sxid[2]) not in _RESET else "warn"
        return Fact(f"sxid:{int(sxid[2])}", severity, text[:_MESSAGE], "nvswitch", sxid[1])
    lost = _LOST.match(text)
    if lost and "fallen off the bus" in text:
        return Fact("xid:79", "info", text[:_MESSAGE], "pci", lost[1], 79)
    return None
