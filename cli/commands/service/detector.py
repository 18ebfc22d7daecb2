"""`peerwatch detector`: what peerwatch-detector.service starts."""

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

from agent.system.shutdown import end_by_signals
from cli.config import judging, open_signed, read_settings, signing_key
from store.schema.contract import StoreError

log = logging.getLogger(__name__)


def detector(
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    store: Annotated[str | None, typer.Option(help="Where the readings are, instead of the configuration's.")] = None,
    kept: Annotated[
        Path | None, typer.Option(help="File for what it remembers over a restart; a service has one of its own.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler, tcp://HOST:8786, whose workers are to judge.")
    ] = None,
) -> None:
    """Compare the machines and keep verdicts in the store until told to stop (SIGTERM or Ctrl-C)."""
    from detector.alerts.open import open_dispatcher
    from detector.service import runner  # numpy and the detector, which the agent's process must not load
    from detector.service.single_instance import alone

    settings = read_settings(config)
    judged = judging(settings)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    stop = threading.Event()
    end_by_signals(stop)
    where, told = store or settings.store, settings.influxdb
    with (
        closing(open_signed(where, True, settings)) as place,
        alone(settings.alerts, where),
        closing(open_dispatcher(settings.alerts, where, told)) as desk,
    ):
        log.info("judging what comes into %s", where)
        if cluster is None:
            runner.run(place, judged, desk, stop, kept or _of_the_service())
            return
        crew = _cluster()
        key = signing_key(where, settings, True)
        order = crew.JudgeTask(where, told, judged, "", frozenset(), time.time_ns(), key=key)
        crew.run(cluster, place, order, desk, stop)


def _cluster() -> ModuleType:
    """The module that speaks with Dask, which is no part of every installation."""
    try:
        from detector.service import dask_cluster
    except ImportError as error:
        raise StoreError("--cluster needs dask.distributed, which is not here: make install EXTRAS=cluster") from error
    return dask_cluster


def _of_the_service() -> Path | None:
    """The file in the folder that systemd gives to the unit, where this is started by it."""
    folder = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    return Path(folder) / "detector.npz" if folder else None
