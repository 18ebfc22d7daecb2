"""GPUs as NVML reports them, read by a child process so that a call that hangs stops no other source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.context import Context
from agent.kernel_log.xid import NVLINK, Xids
from agent.nvml.conditions import NVML_EVENTS, XID, GpuConditions
from agent.nvml.fields import SLOW_COLUMNS
from agent.nvml.gpu_identity import GpuNames
from agent.nvml.watchdog import Watch
from agent.probes.training_processes import TrainingProcesses
from agent.system.events import Event, Repeats, samples
from agent.system.on_change import OnChange
from store.schema.catalogue import METRICS
from store.schema.sample import Sample, Value

IDENTITY = ("uuid", "serial", "pci_address")
_SLOW_NS = 10_000_000_000
_WEEK_NS = 7 * 86_400_000_000_000
_PATIENCE_S = 0.3
_MOST_REPEATS = 10_000
_COLUMNS = frozenset(metric.name for metric in METRICS.values() if metric.table == "gpu")
_GRAVE_BY_TEXT = NVLINK - {74}
_OFF_THE_BUS = "it has fallen off the bus, or cannot be reached otherwise"
"""What NVML means by its error "GPU is lost"."""


class Gpu:
    """One row a GPU at each reading that NVML answers; none while it does not: stale values are not repeated.

    What changes slowly is read every 10 s and repeated in between.
    """

    def __init__(self, watch: Watch, training: TrainingProcesses) -> None:
        self._watch, self._training = watch, training
        self._names, self._conditions = GpuNames(), GpuConditions()
        self._xids, self._repeats = Xids(), Repeats()
        self._slow: dict[str, dict[str, Value]] = {}
        self._read_slow: int | None = None
        self._driver = ""
        self._identity: dict[str, dict[str, Value]] = {}
        """By name, the identity of the card: UUID, serial number and PCI address, as far as the driver knows."""
        self._cards = OnChange[str, dict[str, Value]](_WEEK_NS)
        self._instances: dict[str, dict[str, str]] = {}
        """By name of a GPU that MIG has split, its instances' names and UUIDs."""
        self._gone: frozenset[str] = frozenset()  # names of GPUs that the driver does not find any more

    def read(self, now: int) -> list[Sample]:
        """Rows of GPUs, of what happened to them, and of how NVML fares."""
        slow = self._read_slow is None or not 0 <= now - self._read_slow < _SLOW_NS
        answers = self._watch.read(now, slow)
        repeatable, events, rows = list[Event](), list[Event](), list[Sample]()
        for answer in answers:
            if "there" in answer:
                events += self._greet(now, answer)
            if "gpus" in answer:
                rows = self._rows(answer)
                events += self._lost(now, answer)
                repeatable += self._events_of(now, answer)
            if "processes" in answer:
                self._read_slow = now
                self._place(answer["processes"])
        events += self._stalls(now)
        events += [event for event in repeatable if self._repeats.admit(now, event)] + self._repeats.due(now)
        cards = [Sample("card", {"gpu": name, **self._identity[name]}) for name in self._cards.due(now, self._identity)]
        return rows + cards + samples("gpu", now, events) + self._health()

    @property
    def unavailable_reason(self) -> str:
        """Why there are no GPUs to read now; empty: there are, or they are being asked."""
        return self._watch.error

    def close(self) -> None:
        """End the child."""
        self._watch.close()

    def _greet(self, now: int, answer: Mapping[str, Any]) -> list[Event]:
        """A child has found the driver: again, or another one, or with other GPUs."""
        self._slow.clear()
        self._read_slow = None
        there = {int(index): str(uuid) for index, (uuid, _) in answer["there"].items()}
        missing = self._names.learn(there, frozenset(map(int, (*answer["lost"], *answer["unread"]))))
        self._gone = frozenset(missing)
        places = {int(index): place for index, place in answer["places"].items()}
        self._identity = {
            name: {column: str(value) or None for column, value in zip(IDENTITY, (uuid, *places[index]), strict=True)}
            for index, uuid in there.items()
            if (name := self._names.name(index))
        }
        self._instances = {
            name: {str(part): str(uuid) for part, uuid in parts.items()}
            for index, parts in answer.get("instances", {}).items()
            if (name := self._names.name(int(index)))
        }
        events = self._lost(now, answer)
        driver = str(answer["driver"])[:80]
        message = f"driver {driver} with {len(there)} GPU{'s' * (len(there) != 1)}"
        if self._driver != message:
            events.append(Event("driver", "", "info", message))
        self._driver = message
        for index, (_, mig) in answer["there"].items():
            if mig:
                name = self._names.name(int(index)) or ""
                parts = ", ".join(sorted(self._instances.get(name, {}))) or "none"
                events.append(Event("mig", f"gpu:{name}", "info", f"it is split by MIG; its instances: {parts}"))
        return events

    def _rows(self, answer: Mapping[str, Any]) -> list[Sample]:
        rows = []
        for index, found in answer["gpus"].items():
            name = self._names.name(int(index))
            if name is None:
                continue
            slow = self._slow.setdefault(name, {})
            found = _known(found)
            row: dict[str, Value] = {"gpu": name, **slow, **found}
            if "processes" in answer:
                self._slow[name] = {column: value for column, value in found.items() if column in SLOW_COLUMNS}
                row = {"gpu": name, **self._identity.get(name, {}), **found}
            rows.append(Sample("gpu", row))
        return rows + self._parts(answer)

    def _parts(self, answer: Mapping[str, Any]) -> list[Sample]:
        """A row for each MIG instance, with its own UUID and its parent's."""
        rows = []
        for index, parts in answer.get("parts", {}).items():
            name = self._names.name(int(index))
            known = self._instances.get(name or "", {})
            for part, found in parts.items():
                if part in known:
                    about = {"uuid": known[part], "parent_uuid": self._identity.get(str(name), {}).get("uuid")}
                    rows.append(Sample("gpu", {"gpu": f"{name}/{part}", **about, **_known(found)}))
        return rows

    def _lost(self, now: int, answer: Mapping[str, Any]) -> list[Event]:
        """GPUs that are lost, and those of which the driver only says that something else did not work."""
        lost, unread = self._devices(answer["lost"]), self._devices(answer["unread"])
        lost |= {f"gpu:{name}": "the driver does not find it any more" for name in self._gone}
        events = list[Event]()
        for device, why in lost.items():
            reason = _OFF_THE_BUS if why.lower() == "gpu is lost" else why
            events += self._conditions.begin(now, "gpu_lost", device, f"the GPU is lost: {reason}")
        for device, why in unread.items():
            events += self._conditions.begin(now, "gpu_unread", device, f"the GPU cannot be read: {why}", "warn")
        current = frozenset((*lost, *unread))
        events += self._conditions.end("gpu_lost", "gpu_back", "the GPU is there again", current)
        return events + self._conditions.end("gpu_unread", "gpu_read", "the GPU can be read", current)

    def _devices(self, reasons: Mapping[str, Any]) -> dict[str, str]:
        names = ((self._names.name(int(index)), str(why)[:100]) for index, why in reasons.items())
        return {f"gpu:{name}": why for name, why in names if name is not None}

    def _events_of(self, now: int, answer: Mapping[str, Any]) -> list[Event]:
        events = []
        for index, kind, data, times in answer["events"]:
            name = self._names.name(int(index))
            device = f"gpu:{name}" if name is not None else ""
            event: Event | None = None
            if kind == XID:
                event = self._classify(now, device, int(data))
            elif kind in NVML_EVENTS:
                code, severity, words = NVML_EVENTS[kind]
                event = Event(code, device, severity, words)
            if event is not None:
                events += [event] * min(int(times), _MOST_REPEATS)
        if answer["dropped"]:
            events.append(Event("events_lost", "", "info", f"{answer['dropped']} events of NVML were too many to keep"))
        return events

    def _classify(self, now: int, device: str, code: int) -> Event | None:
        """NVML reports the bare code: where the driver's text gives the severity, the kernel log reports crit."""
        event = self._xids.classify(now, device, code)
        return replace(event, severity="warn") if event and code in _GRAVE_BY_TEXT else event

    def _stalls(self, now: int) -> list[Event]:
        """Events of NVML as a whole: it hangs, the driver was unloaded or loaded again, or the child has failed."""
        watch, gone = self._watch, list[Event]()
        if watch.error and self._driver and not watch.stalled:
            gone = self._conditions.begin(now, "nvml_gone", "", watch.error, "warn")
        elif not watch.error:
            gone = self._conditions.end("nvml_gone", "nvml_back", self._driver)
        device = "" if watch.where is None else f"gpu:{self._names.name(watch.where) or watch.where}"
        if watch.stalled:
            where = f"; the call that hangs is on {device}" if device else ""
            return gone + self._conditions.begin(now, "nvml_stalled", device, f"{watch.error}{where}")
        return gone + self._conditions.end("nvml_stalled", "nvml_resumed", "NVML answers again")

    def _place(self, processes: Mapping[str, list[int]]) -> None:
        """Tell on which GPU a process computes, if its number is one of ours and there is only one such GPU.

        The driver may count in another PID namespace. Then some of its numbers most likely name no process here, and
        none of them is believed.
        """
        times = Counter(pid for pids in processes.values() for pid in pids)
        try:
            if times and all(self._training.alive(pid) for pid in times):
                pairs = ((pid, self._names.name(int(index))) for index, pids in processes.items() for pid in pids)
                self._training.place({pid: name for pid, name in pairs if name is not None and times[pid] == 1})
        except OSError:
            return  # one of them cannot be read: then the GPU of none is certain

    def _health(self) -> list[Sample]:
        watch = self._watch
        if not watch.found or (watch.seconds is None and not watch.error):
            return []
        values: dict[str, Value] = {
            "source": "nvml",
            "success": float(not watch.error),
            "duration_seconds": watch.seconds,
            "failures_total": watch.failures,
            "error": watch.error or None,
        }
        return [Sample("source", values)]


def open_source(context: Context) -> Gpu:
    """The source, ready to read: also where there is no library or driver yet, since both may come later."""
    patience_s = min(_PATIENCE_S, context.config.limit_seconds / 2)
    return Gpu(Watch(Path(context.config.root), patience_s), context.training)


def _known(found: Mapping[str, Any]) -> dict[str, Value]:
    """What the child says of columns that there are, as text or numbers: no store takes another name or value."""
    return {name: value for name, value in found.items() if name in _COLUMNS and isinstance(value, str | int | float)}
