"""`peerwatch detector`: the program of peerwatch-detector.service."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from agent.system.service_manager import ServiceManager
from agent.system.shutdown import end_by_signals
from cli.config import Settings, detector_config, open_signed, read_settings, signing_key
from cli.options import ConfigOption, renamed
from store.schema.contract import Store, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from detector.config import Config
    from detector.model.verdict import Verdict
    from detector.service.lease import Lease
    from store.signed import Signed

log = logging.getLogger(__name__)


def detector(
    config: ConfigOption = None,
    store: Annotated[str | None, typer.Option(help="The store, instead of the configuration's.")] = None,
    state_file: Annotated[
        Path | None, typer.Option(help="File of its state over a restart; default: in the state folder of the unit.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, tcp://HOST:8786; its workers judge.")
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Share the store with other detectors; one of them speaks.")
    ] = False,
    kept: Annotated[Path | None, typer.Option(hidden=True, help="Old name of --state-file.")] = None,
) -> None:
    """Compare the machines, write verdicts to the store and send alerts, until SIGTERM or Ctrl-C."""
    from detector.service.single_instance import alone
    from detector.service.standby import refuse_others

    settings = read_settings(config)
    judged = detector_config(settings)
    shares = standby or judged.standby
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    end_by_signals(stop)
    place = store or settings.store
    file = renamed(kept, "--kept", "--state-file") or state_file or _service_state_file()
    with (
        closing(ServiceManager()) as manager,
        closing(open_signed(place, True, settings)) as opened,
        alone(settings.alerts, place, shares),
    ):
        service = _Service(settings, judged, place, file, cluster, stop, manager.alive)
        if shares:
            service.stand_by(opened)
        else:
            refuse_others(opened, place)
            log.info("judging what comes into %s", place)
            service.speak(opened)


@dataclass(frozen=True)
class _Service:
    """What the command line and the configuration say."""

    settings: Settings
    judged: Config
    place: str
    state_file: Path | None
    cluster: str | None
    stop: threading.Event
    alive: Callable[[str], None]

    def stand_by(self, opened: Signed) -> None:
        """Speak whenever this detector holds the lease, until it is stopped."""
        import detector.alerts.open
        import detector.service.runner  # noqa: F401 - loaded now, so that a takeover need not wait for it
        from detector.service.lease import Lease, LeaseThread
        from detector.service.standby import take_turns

        own = open_signed(self.place, True, self.settings)  # a long read of the other connection delays no renewal
        lease = Lease(own)
        log.info("%s shares %s with other detectors", lease.holder, self.place)
        with closing(LeaseThread(lease)):
            take_turns(lease, lambda: self.speak(opened, lease), self.stop, self.alive)

    def speak(self, opened: Signed, lease: Lease | None = None) -> None:
        """Judge and send alerts until it is stopped, or another holds the lease."""
        from cli.queries.analysis.shared_switch import switch_notes
        from cli.queries.probes import read_uncounted
        from detector.alerts.open import open_dispatcher
        from detector.alerts.shared_log import SharedLog
        from detector.service import runner  # loads numpy, which the agent's process must not
        from detector.service.lease import Fenced
        from detector.service.metrics import outlets
        from detector.service.standby import STALE_NS

        alerts, influxdb = self.settings.alerts, self.settings.influxdb
        switches = switch_notes(self.settings.topology)

        def notes(store: Store, verdict: Verdict) -> tuple[str, ...]:
            return (*switches(store, verdict), *read_uncounted(store, verdict))

        source: Store = opened
        stale_ns = runner.STALE_NS
        if lease is None:
            dispatcher = open_dispatcher(alerts, self.place, influxdb, notes=notes)
        else:
            shared = SharedLog(opened, succeeds=lease.term > 1)
            shared.read()
            source, stale_ns = Fenced(opened, lease), STALE_NS
            dispatcher = open_dispatcher(alerts, self.place, influxdb, held=lease.held, shared=shared, notes=notes)
        with closing(dispatcher), closing(outlets(dispatcher, self.settings.metrics, self.settings.otlp)):
            if self.cluster is None:
                runner.run(source, self.judged, dispatcher, self.stop, self.state_file, stale_ns, self.alive)
                return
            key = signing_key(self.place, self.settings, True)
            dask = _cluster()
            order = dask.JudgeTask(self.place, influxdb, self.judged, "", frozenset(), time.time_ns(), key=key)
            dask.run(self.cluster, source, order, dispatcher, self.stop, self.alive)


def _cluster() -> ModuleType:
    """The module for Dask, which is an optional dependency."""
    try:
        from detector.service import dask_cluster
    except ImportError as error:
        raise StoreError(
            "--cluster needs dask.distributed, which is not installed: make install EXTRAS=cluster"
        ) from error
    return dask_cluster


def _service_state_file() -> Path | None:
    """The state file in systemd's state folder; None outside of systemd."""
    folder = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(folder) / "detector.npz" if folder else None
