"""The number of each GPU: NVML's index when it was first seen, which its UUID keeps for good."""

from __future__ import annotations

from collections.abc import Mapping


class GpuNames:
    """NVML's index now -> the name in the tables, such as "3".

    NVML numbers GPUs by PCI address, as CUDA_VISIBLE_DEVICES does under CUDA_DEVICE_ORDER=PCI_BUS_ID (on machines of
    equal GPUs also without it). When one falls off the bus and the driver is loaded again, those behind it move up
    in NVML's order, but keep their names here.
    """

    def __init__(self) -> None:
        self._owner: dict[str, str] = {}  # name -> UUID
        self._now: dict[int, str] = {}

    def learn(self, uuids: Mapping[int, str], lost: frozenset[int] = frozenset()) -> list[str]:
        """Learn the GPUs that a driver found when it was loaded; returns the names of known GPUs that it lacks.

        `lost` are indices of GPUs that are present but cannot be identified.
        """
        known = {uuid: name for name, uuid in self._owner.items()}
        names = {index: known[uuid] for index, uuid in uuids.items() if uuid in known}
        for index in sorted({*uuids, *lost} - set(names)):
            taken = set(names.values())
            if index in lost and str(index) in self._owner and str(index) not in taken:
                names[index] = str(index)  # most likely it is the one that was there
                continue
            free = [str(index), *(name for name in map(str, range(len(taken) + 1)))]
            names[index] = next(name for name in free if name not in taken)
            self._owner[names[index]] = uuids.get(index, "")
        self._now = names
        return sorted(set(self._owner) - set(names.values()))

    def name(self, index: int) -> str | None:
        """The name of the GPU at NVML's index."""
        return self._now.get(index)
