"""Names of NCCL operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_POINT_TO_POINT = ("send", "recv", "putsignal", "signal", "waitsignal")


def named(operation: str) -> str:
    """An operation as people say it: `AllReduce (f32 × 1024)`."""
    kind, _, rest = operation.partition(":")
    return f"{kind} ({rest.replace(':', ' × ')})" if rest else kind or "an operation"


def is_point_to_point(operations: NDArray[Any]) -> NDArray[np.bool_]:
    """Which operations, as the store writes them, go from rank to rank: they differ between ranks by nature."""
    kinds = np.char.lower(operations.astype(str))
    found: NDArray[np.bool_] = np.any([np.char.startswith(kinds, word) for word in _POINT_TO_POINT], axis=0)
    return found
