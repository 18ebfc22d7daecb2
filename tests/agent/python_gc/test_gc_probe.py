"""The states of a probe on garbage collections follow each other in a known order."""

from __future__ import annotations

import pytest

from agent.process.procfs import Process
from agent.python_gc.gc_probe import GcProbe, State


@pytest.fixture
def probe() -> GcProbe:
    """A process with files that are being read."""
    return GcProbe(Process(2741, 83, 0), [])


def test_a_probe_that_is_hit_too_often_comes_back(probe: GcProbe) -> None:
    """Attached, rate limited and attached again; each state has its own reason."""
    for state, reason in ((State.ATTACHED, ""), (State.RATE_LIMITED, "1300 hits a second"), (State.ATTACHED, "")):
        probe.transition(state, reason)
        assert (probe.state, probe.reason) == (state, reason)


@pytest.mark.parametrize("last", [State.NO_PYTHON, State.FROM_MEMORY, State.BLOCKED])
def test_some_states_are_final(probe: GcProbe, last: State) -> None:
    """A process without Python, one that is read from memory and one that is blocked stay so until they end."""
    probe.transition(last, "for good")
    for state in State:
        with pytest.raises(ValueError, match=f"{state.name} does not follow {last.name}"):
            probe.transition(state)
    assert (probe.state, probe.reason) == (last, "for good")
