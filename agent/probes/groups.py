"""The groups of probes that are taken off together."""

from __future__ import annotations

LIFE, CALLS, SYNCHRONIZE, LAUNCHES, GRAPHS, COPIES, ALLOCATIONS = range(7)
"""In the order of `enum group` in bpf/programs/common.bpf.h, by which the kernel counts hits."""
PYTHON = 7
"""Garbage collections, which are counted apart."""
SWITCHES = 8
"""Switches of threads at the scheduler's tracepoint, which are counted apart."""
GROUPS = 9

WORDS = (
    "communicators",
    "calls",
    "synchronize calls",
    "launches",
    "graph launches",
    "copies",
    "allocations",
    "garbage collections",
    "switches of threads",
)
"""What each group is called in a reason."""
CUDA = {
    SYNCHRONIZE: "synchronize",
    LAUNCHES: "launches",
    GRAPHS: "graphs",
    COPIES: "copies",
    ALLOCATIONS: "allocations",
}
"""Those of libcudart, with the name that `agent.cuda_calls` has for them."""

ASKED: dict[int, tuple[str, ...]] = {
    LAUNCHES: ("cudaLaunchKernel", "cudaLaunchKernelExC"),
    GRAPHS: ("cudaGraphLaunch",),
    COPIES: ("cudaMemcpy", "cudaMemcpyAsync"),
    ALLOCATIONS: ("cudaMalloc", "cudaMallocAsync"),
}
"""Functions that are probed only on request: they are called too often to be free."""
VARIANTS = ("", "Config", "_ptsz", "_ptds")
"""Suffixes of functions that take the same arguments in the same places and share a program."""
_LIFE = tuple(
    f"ncclComm{word}" for word in ("Init", "Split", "Shrink", "Grow", "Finalize", "Destroy", "Abort", "Revoke")
)
"""Beginnings of NCCL's functions that are called seldom: they make or end communicators."""
_GROUP_OF = {name + suffix: group for group, names in ASKED.items() for name in names for suffix in VARIANTS}


def group_of(function: str) -> int:
    """The group of a probed function."""
    if function.startswith("nccl"):
        return LIFE if function.startswith(_LIFE) else CALLS
    return _GROUP_OF.get(function, SYNCHRONIZE)
