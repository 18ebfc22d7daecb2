"""What the detector exposes to monitoring systems: open verdicts, silent machines, blindness, the state of sinks."""

from __future__ import annotations

from importlib.metadata import version
from typing import Literal

from detector.alerts.alert import BLIND, Alert
from detector.alerts.dispatcher import AlertDispatcher
from detector.thresholds.report import LearningReport
from store.exposition.config import MetricsConfig, OtlpConfig
from store.exposition.family import Family
from store.exposition.published import Outlets
from store.schema.time import SECOND

VERDICTS = 10_000
"""Open verdicts that are exposed; the worst come first."""
_JOB = ("job_id", "job_name", "job_user", "namespace", "pod")


def families_of(dispatcher: AlertDispatcher) -> list[Family]:
    """All metrics after the dispatcher's last step; before the first one only that the detector runs."""
    shown = dispatcher.shown
    view, time = shown.view, shown.time
    found = [_one("peerwatch_detector", "info", "the detector that answers", 1.0, time, version=version("peerwatch"))]
    if not time:
        return found
    step = "when the detector last finished a step, Unix time"
    blind = any(alert.verdict.kind == BLIND for alert in shown.open)
    found += [
        _one("peerwatch_detector_last_step_timestamp_seconds", "gauge", step, time / SECOND, time),
        _one("peerwatch_machines", "gauge", "machines that are judged", view.machines, time),
        _one("peerwatch_machines_silent", "gauge", "machines of which no reading comes", len(view.silent), time),
        _one(
            "peerwatch_store_usable",
            "gauge",
            "whether the store could be read and written: 0 or 1",
            not view.error,
            time,
        ),
        _one("peerwatch_blind", "gauge", "whether too little is read to find a fault: 0 or 1", blind, time),
        *_verdicts(shown.open, time),
        *_sinks(dispatcher, time),
    ]
    last = Family(
        "peerwatch_machine_last_reading_timestamp_seconds", "gauge", "last reading of a silent machine, Unix time"
    )
    for machine, at in sorted(view.silent.items())[:VERDICTS]:
        last.add({"machine": machine}, at / SECOND, time)
    said = Family("peerwatch_verdicts", "counter", "verdicts since the detector started, by level")
    for level, count in sorted(dispatcher.verdicts.items()):
        said.add({"level": level}, count, time)
    return [*found, *_learning(dispatcher.learning, time), last, said]


def outlets(dispatcher: AlertDispatcher, metrics: MetricsConfig, otlp: OtlpConfig) -> Outlets:
    """The detector's endpoint and sender, as far as they are configured."""
    about = {"service.name": "peerwatch-detector"}
    listen = metrics.detector_listen, "metrics.detector_listen"
    return Outlets(listen, otlp, about, lambda _: families_of(dispatcher))


def _learning(learned: LearningReport | None, time: int) -> list[Family]:
    """How far the thresholds are learned."""
    if learned is None:
        return []
    readings = Family("peerwatch_thresholds", "gauge", "readings by what became of their threshold")
    unchanged = learned.readings - learned.raised - learned.lowered
    for state, count in (("raised", learned.raised), ("lowered", learned.lowered), ("built-in", unchanged)):
        readings.add({"state": state}, float(count), time)
    asked, seen = "false pages asked for, per 1,000 machine-hours", "machine-hours of health learned from, in a week"
    return [
        readings,
        _one("peerwatch_false_pages_asked", "gauge", asked, learned.asked, time),
        _one("peerwatch_learned_machine_hours", "gauge", seen, learned.machine_hours, time),
    ]


def _verdicts(open_: tuple[Alert, ...], time: int) -> list[Family]:
    active = Family("peerwatch_verdict_active", "gauge", "an open verdict: 1")
    onset = Family(
        "peerwatch_verdict_onset_timestamp_seconds", "gauge", "when the pattern of an open verdict began, Unix time"
    )
    faults = (alert for alert in open_ if alert.verdict.kind != BLIND)
    for alert in sorted(faults, key=lambda one: (one.verdict.level != "crit", one.start))[:VERDICTS]:
        verdict = alert.verdict
        device, kind, job = verdict.device or "", verdict.kind, alert.job.as_json() if alert.job else {}
        about = {"machine": verdict.machine, "device": device, "metric": verdict.metric, "kind": kind}
        about |= {"level": verdict.level, "task": verdict.task, "incident": alert.incident}
        active.add(about | {name: job[name] for name in _JOB if name in job}, 1.0, time)
        onset.add({"incident": alert.incident, "machine": verdict.machine}, alert.start / SECOND, time)
    return [active, onset]


def _sinks(dispatcher: AlertDispatcher, time: int) -> list[Family]:
    """Deliveries of each sink since its delivery log began."""
    counted = Family(
        "peerwatch_sink_alerts", "counter", "alerts of a sink by what became of them; failed ones are tried again"
    )
    failing = Family("peerwatch_sink_failing", "gauge", "whether the last call of a sink failed: 0 or 1")
    for worker in dispatcher.workers:
        log = worker.delivery_log
        for result in ("delivered", "failed", "refused", "dropped"):
            counted.add({"sink": worker.name, "result": result}, getattr(log, result), time)
        failing.add({"sink": worker.name}, bool(log.error), time)
    return [counted, failing]


def _one(name: str, kind: Literal["gauge", "info"], text: str, value: float, time: int, **labels: str) -> Family:
    family = Family(name, kind, text)
    family.add(labels, float(value), time)
    return family
