"""Real database servers for tests: started on free loopback ports, in a folder of their own, ended by their process."""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

INFLUXD_CONF = """
reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
dir = "{folder}/meta"
[data]
dir = "{folder}/data"
wal-dir = "{folder}/wal"
index-version = "tsi1"
query-log-enabled = false
[http]
bind-address = "127.0.0.1:{port}"
log-enabled = false
auth-enabled = {auth}
[monitor]
store-enabled = false
[logging]
level = "error"
"""


def free_port() -> int:
    """A port on which no process listens now.

    It is below those that the kernel gives to clients: one that dials a server while that is down could get its very
    port, and the server could not start again.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(10_000, lowest - 1000), lowest)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def find(program: str, package: str) -> str:
    """The program, unpacked by `make test` or installed; skips where it is not there."""
    places = [Path(sys.prefix) / "servers" / package / room / program for room in ("usr/bin", "usr/sbin")]
    unpacked = next((str(place) for place in places if place.exists()), None)
    found = unpacked or shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(f"{program} is not here: make test fetches it, or apt-get install {package}")
    return found


class ServerProcess:
    """A server that can be killed and started again on the same data."""

    def __init__(self, command: list[str], port: int) -> None:
        self.command, self.port = command, port
        self.url = f"http://127.0.0.1:{port}"
        self.patience_s = 60.0
        """How long a start may take."""
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill)  # a test that fails leaves none behind

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/ping", timeout=5):  # noqa: S310 - loopback
                    return
            except urllib.error.HTTPError:
                return  # it answers, be it that it asks who is there
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it, by default without giving it time to write anything down."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    def ask(self, query: str, database: str = "") -> bytes:
        """The answer of InfluxDB 1 to a query, as CSV."""
        form = urllib.parse.urlencode({"q": query, "db": database, "epoch": "ns"}).encode()
        request = urllib.request.Request(f"{self.url}/query", form, {"Accept": "application/csv"})  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            said: bytes = answer.read()
        return said


def tear(folder: Path) -> None:
    """Leave the newest entry of each write-ahead log of a killed InfluxDB 1 in this folder half written."""
    for room in {log.parent for log in folder.glob("wal/**/*.wal")}:
        newest = max(room.glob("*.wal"))
        os.truncate(newest, max(0, newest.stat().st_size - 3))


def influxd(folder: Path, auth: bool = False) -> ServerProcess:
    """Debian's InfluxDB 1, not yet started; skips where it is not installed."""
    program = find("influxd", "influxdb")
    port = free_port()
    conf = folder / "influxdb.conf"
    conf.write_text(INFLUXD_CONF.format(folder=folder, port=port, rpc=free_port(), auth=str(auth).lower()))
    return ServerProcess([program, "-config", str(conf)], port)


def victoria(folder: Path) -> ServerProcess:
    """VictoriaMetrics, not yet started: it takes both dialects of writing and answers no InfluxQL."""
    program = find("victoria-metrics", "victoria-metrics")
    port = free_port()
    words = [f"-storageDataPath={folder / 'vm'}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=1200"]
    return ServerProcess([program, *words, "-search.latencyOffset=0s"], port)


class NatsProcess(ServerProcess):
    """nats-server: it speaks no HTTP on its port, but greets whoever connects."""

    def start(self) -> None:
        """Start it and wait until it greets and its streams can be asked for."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + self.patience_s
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5) as caller:
                    if caller.recv(4096).startswith(b"INFO"):
                        return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise
            time.sleep(0.01)


def nats(folder: Path, *words: str) -> NatsProcess:
    """Debian's nats-server with JetStream, not yet started; skips where it is not installed."""
    port = free_port()
    command = [find("nats-server", "nats-server"), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "js")]
    server = NatsProcess([*command, *words], port)
    server.url = f"nats://127.0.0.1:{port}"
    return server


def prometheus(folder: Path, targets: dict[str, list[int]], rules: Path) -> ServerProcess:
    """A Prometheus that reads these ports of loopback each second, by name of the job, and evaluates rules."""
    port = free_port()
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in ports]}]}
        for name, ports in targets.items()
    ]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = {"global": every, "scrape_configs": jobs, "rule_files": [str(rules)]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    words = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=error"]
    words.append(f"--web.listen-address=127.0.0.1:{port}")
    return ServerProcess([find("prometheus", "prometheus"), *words], port)
