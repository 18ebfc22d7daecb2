"""The demo where there is no root or no BPF: a simulated fleet, and the same detector over it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from cli.show import Outcome, Plan
from store.export import write_recording
from store.recording import Recording

if TYPE_CHECKING:
    from cli.live import Picture

MINUTES = 15.0


def pretend(plan: Plan, machines: int, screen: Picture) -> Outcome:
    """Simulate a quarter of an hour with the fault, write the recording, replay it; times are the simulation's."""
    from detector.pipeline import replay
    from emulator.simulate import simulate
    from emulator.simulated_faults import FAULTS, WEAK

    if plan.fault not in ("none", *FAULTS, *WEAK):
        known = ", ".join((*FAULTS, *WEAK))
        raise ValueError(f"{plan.fault} needs an emulated fleet, and so root and BPF; simulated are {known}")
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
