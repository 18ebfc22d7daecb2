"""`peerwatch up`: agent, detector and store on this machine, in the foreground."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote

from cli.agent_process import agent_command
from cli.config import detector_config, locate_store, open_signed, read_settings
from cli.options import ConfigOption, StoreOption
from store.influx.config import is_address

STOP_S = 10.0
SILENT_NS = 30 * 10**9


def up(
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Run agent, detector and store on this machine until Ctrl-C, with a live table."""
    from cli.queries.fleet_status import read_fleet_status
    from cli.views.live_table import live_display
    from detector.alerts.open import open_dispatcher
    from detector.service.runner import Runner
    from detector.service.single_instance import alone
    from detector.service.standby import refuse_others
    from store.schema.time import SECOND

    for number in (signal.SIGTERM, signal.SIGHUP):  # closing the terminal stops the agent too
        signal.signal(number, signal.default_int_handler)
    settings = read_settings(config)
    judged = detector_config(settings)
    place, late_ns = locate_store(store, config, writing=True)[0], round(judged.judging_delay_seconds * SECOND)
    stop = threading.Event()
    log = _log(place, settings.influxdb.spool_folder)
    with (
        closing(open_signed(place, True, settings)) as readings,
        alone(settings.alerts, place),
        closing(open_dispatcher(settings.alerts, place, settings.influxdb, but="log")) as dispatcher,
        live_display() as screen,
        _agent(agent_command(place, config), log) as agent,
    ):
        refuse_others(readings, place)
        runner = Runner(readings, judged, time.time_ns() - late_ns)
        dispatcher.begin(runner.history)
        dispatcher.acknowledged = runner.acknowledged
        screen.say(f"readings go to {place}; Ctrl-C ends; elsewhere: peerwatch status --store {quote(place)}")
        while agent.poll() is None:
            now = time.time_ns()
            verdicts = runner.catch_up(now - late_ns, stop)
            runner.request_zoom(now)
            silent = runner.blind_spots(now, dispatcher.blind_s)
            dispatcher.publish(verdicts, runner.machines(), now, silent, runner.noted)
            for verdict in verdicts:
                screen.say(f"{verdict.level}: {verdict.message}")
            screen.show(
                f"peerwatch up, {place}", read_fleet_status(readings, now, SILENT_NS), runner.detector.suspicions()
            )
            time.sleep(max(0.1, 1 - (time.time_ns() - now) / 1e9))
        raise OSError(f"the agent ended with code {agent.returncode}; its log is {log}")


def _log(place: str, spool_folder: str) -> Path:
    return Path(spool_folder) / "agent.log" if is_address(place) else Path(place).with_suffix(".agent.log")


@contextmanager
def _agent(command: list[str], file: Path) -> Iterator[subprocess.Popen[bytes]]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        log = file.open("ab")
    except OSError as error:
        raise OSError(f"{file} cannot be written: {error.strerror}; run as root, or use another --store") from error
    with log:
        agent = subprocess.Popen(command, stderr=log, start_new_session=True)
    try:
        yield agent
    finally:
        agent.terminate()
        try:
            agent.wait(STOP_S)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
