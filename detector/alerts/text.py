"""The lines after an alert's headline: onset, number of peers, readings, hardware, next step."""

from __future__ import annotations

from detector.alerts.alert import BLIND, Alert, clock
from detector.model.text import compared_with

HARDWARE = {"uuid": "UUID", "serial": "serial", "pci_address": "PCI"}


def details(alert: Alert) -> list[str]:
    """The lines after the headline, each without line breaks; none after the end of an incident and none of a test."""
    if alert.end is not None or alert.event == "test":
        return []
    brief, verdict = alert.brief, alert.verdict
    peers = f", compared with {compared_with(verdict.message, brief.peers)}" if brief.peers else ""
    lines = [f"since {clock(alert.start)} UTC{peers}"]
    if verdict.kind != BLIND:
        lines[0] += f", task {verdict.task}"
    if alert.job:
        lines.append(f"job: {alert.job.words}")
    lines += [f"{one.text}, before {one.was}" if one.was else one.text for one in brief.numbers]
    lines += brief.notes
    known = [f"{word} {brief.hardware[name]}" for name, word in HARDWARE.items() if name in brief.hardware]
    if known:
        lines.append(f"{verdict.device or verdict.machine}: {', '.join(known)}")
    if brief.advice:
        lines.append(f"next: {brief.advice}")
    lines.append("more: peerwatch " + ("status" if verdict.kind == BLIND else f"show {alert.incident}"))
    return [" ".join(line.split()) for line in lines]
