"""The demo without root or BPF: the same detector on a simulated fleet."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cli.demo.emulated import Outcome, Plan
from store.recording import Recording
from store.transfer.export import write_recording

if TYPE_CHECKING:
    from cli.views.live_table import LiveDisplay

MINUTES = 15.0


def simulated_demo(plan: Plan, machines: int, screen: LiveDisplay) -> Outcome:
    """Simulate 15 minutes with the fault, write the recording, replay it; times are the simulation's."""
    from detector.engine.pipeline import replay
    from emulator.simulation.faults import FAULTS, WEAK
    from emulator.simulation.simulate import simulate

    if plan.fault not in ("none", *FAULTS, *WEAK):
        known = ", ".join((*FAULTS, *WEAK))
        raise ValueError(
            f"{plan.fault} needs an emulated fleet, which needs root and BPF; a simulated fleet has {known}"
        )
    tables, labels = simulate(max(machines, 8), MINUTES, 1.0, plan.fault, plan.seed, 1)
    folder = plan.place / "recording"
    write_recording(folder, tables, labels)
    outcome = Outcome({"machine": None, "device": None, "kind": plan.fault, "start": None})
    for fault in labels["faults"]:
        outcome.fault |= {name: fault[name] for name in ("machine", "device", "start")}
        screen.say(f"simulated: {fault['machine']} {fault['device'] or ''} gets the fault {fault['kind']}")
    with closing(Recording(folder)) as recording:
        for verdict in replay(recording):
            outcome.verdicts.append(verdict.as_json())
            screen.say(f"{verdict.level}: {verdict.message}")
    return outcome
