"""`peerwatch detector`: the program of peerwatch-detector.service."""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from agent.system.service_manager import ServiceManager
from agent.system.shutdown import end_by_signals
from cli.config import detector_config, open_signed, read_settings, signing_key
from cli.options import renamed
from store.schema.contract import StoreError

log = logging.getLogger(__name__)


def detector(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    store: Annotated[str | None, typer.Option(help="The store, instead of the configuration's.")] = None,
    state_file: Annotated[
        Path | None, typer.Option(help="File of its state over a restart; default: in the state folder of the unit.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, tcp://HOST:8786; its workers judge.")
    ] = None,
    kept: Annotated[Path | None, typer.Option(hidden=True, help="Old name of --state-file.")] = None,
) -> None:
    """Compare the machines, write verdicts to the store and send alerts, until SIGTERM or Ctrl-C."""
    from detector.alerts.open import open_dispatcher
    from detector.service import runner  # loads numpy, which the agent's process must not
    from detector.service.single_instance import alone

    settings = read_settings(config)
    judged = detector_config(settings)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    end_by_signals(stop)
    address, influxdb = store or settings.store, settings.influxdb
    with (
        closing(ServiceManager()) as manager,
        closing(open_signed(address, True, settings)) as place,
        alone(settings.alerts, address),
        closing(open_dispatcher(settings.alerts, address, influxdb)) as dispatcher,
    ):
        log.info("judging what comes into %s", address)
        if cluster is None:
            runner.run(
                place,
                judged,
                dispatcher,
                stop,
                renamed(kept, "--kept", "--state-file") or state_file or _service_state_file(),
                alive=manager.alive,
            )
            return
        dask = _cluster()
        order = dask.JudgeTask(
            address, influxdb, judged, "", frozenset(), time.time_ns(), key=signing_key(address, settings, True)
        )
        dask.run(cluster, place, order, dispatcher, stop, alive=manager.alive)


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
