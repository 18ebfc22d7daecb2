"""Reads which network adapter is nearest to each GPU: the table that `nvidia-smi topo -m` prints.

Source: its own legend: X self; NV# NVLink; PIX at most one PCIe bridge; PXB several bridges; PHB the host bridge; NODE
within a NUMA node; SYS across sockets.
"""

from __future__ import annotations

import re

_FAR = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")
_ADAPTER = re.compile(r"(NIC\d+|mlx\d+_\d+|bnxt_re\d+|rdmap\w+)$")


def is_nvidia_smi(text: str) -> bool:
    """Whether this looks like that table."""
    return re.search(r"^[\s\x1b\[4m]*GPU0\s.*CPU Affinity", text, re.MULTILINE) is not None


def read_nvidia_smi(text: str) -> dict[str, int]:
    """GPU number -> number of its nearest adapter, in the order of columns; of equally near ones the least used.

    Raises ValueError for a table without adapters.
    """
    lines = [line.split() for line in re.sub(r"\x1b\[\d*m", "", text).splitlines() if line.strip()]
    head = next((line for line in lines if line[0] == "GPU0" and "CPU" in line), [])
    adapters = [at for at, name in enumerate(head) if _ADAPTER.match(name)]
    if not adapters:
        raise ValueError("no network adapter among the columns of nvidia-smi topo -m")
    out: dict[str, int] = {}
    for line in lines:
        if re.match(r"GPU\d+$", line[0]) and line is not head and len(line) > max(adapters) + 1:
            distance = [_FAR.index(cell) if cell in _FAR else len(_FAR) for cell in (line[at + 1] for at in adapters)]
            used = list(out.values())
            near = [at for at, far in enumerate(distance) if far == min(distance)]
            out[line[0][3:]] = min(near, key=used.count)
    return out
