"""The first process of an emulated machine, inside its namespaces: names it, mounts its libraries, keeps its processes.

It obeys JSON lines on standard input and answers each with one on standard output. When the input ends, because the
fleet stopped or died, it ends everything; the kernel kills the rest of a PID namespace when its first process is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from emulator.hardware.machine import Hardware
from emulator.shared.errors import CallError
from emulator.shared.fabric import remove

PR_SET_PDEATHSIG = 1
GRACE_S = 1.5
RANK_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
AUTOGROUP = Path("/proc/self/autogroup")


def _keep_priority() -> None:
    """Give the session of this machine the niceness of its fleet.

    Where the kernel shares processors between sessions first (autogroup), a new one begins at 0.
    """
    if AUTOGROUP.exists() and (niceness := os.nice(0)):
        with contextlib.suppress(PermissionError):  # a niceness that was inherited from somebody with more rights
            AUTOGROUP.write_text(f"{niceness}\n")


def _mount_libraries(libraries: Path, at: Path, nccl: str | None) -> None:
    """Copies of their own, on a file system that goes away with the namespace; NVIDIA's libnccl is too big for that."""
    at.mkdir(exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"libraries", os.fsencode(at), b"tmpfs", 0, b"mode=755,size=16m"):
        raise CallError(f"can't mount a tmpfs on {at}: {os.strerror(ctypes.get_errno())}")
    for library in libraries.iterdir():
        shutil.copy(library, at)
    if nccl:
        (at / "libnccl.so.2").unlink()
        (at / "libnccl.so.2").symlink_to(nccl)


class Machine:
    """The processes of this machine: its ranks and its agent, by name ("rank 3", "agent")."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder, self.spec = Path(spec["folder"]), spec
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.hardware: Hardware | None = None

    def start(self) -> None:
        """Become the machine and start everything."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _keep_priority()
        socket.sethostname(self.spec["name"])
        _mount_libraries(Path(self.spec["libraries"]), self.folder / "lib", self.spec["nccl"])
        ranks = [int(rank) for rank in self.spec["ranks"]]
        self.hardware = Hardware(self.folder, Path(self.spec["fabric"]), ranks, self._pids)
        self.start_ranks()
        self.hardware.start()
        if self.spec["agent"]:
            libraries = {"LD_LIBRARY_PATH": str(self.folder / "lib")}
            self._start("agent", self.spec["agent"], libraries | self.hardware.environment)

    def start_ranks(self) -> None:
        """Start every rank, with what a launcher tells it (torchrun's names).

        A rank takes its signals when it is ready for them, even those that come before: it inherits that they wait.
        """
        before = signal.pthread_sigmask(signal.SIG_BLOCK, RANK_SIGNALS)
        devices = str(self.folder / "dev")
        for gpu, (rank, command) in enumerate(self.spec["ranks"].items()):
            variables = {"RANK": rank, "LOCAL_RANK": str(gpu), "EMULATED_DEVICES": devices}
            variables["EMULATED_GPUS"] = str(self.folder / "gpus")
            self._start(f"rank {rank}", command, variables)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def restart_ranks(self) -> None:
        """Restart every rank, on the fresh fabric that the fleet has made meanwhile."""
        if self.hardware:
            self.hardware.reopen()
        self.start_ranks()

    def _pids(self) -> list[int | None]:
        ranks = [self.processes.get(f"rank {rank}") for rank in self.spec["ranks"]]
        return [process.pid if process and process.poll() is None else None for process in ranks]

    def _start(self, name: str, command: list[str], variables: dict[str, str] | None = None) -> None:
        environment = {**os.environ, **(variables or {})}
        with (self.folder / f"{name.replace(' ', '')}.log").open("ab") as log:
            try:
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )
            except OSError as error:
                raise CallError(f"can't start the {name}: {error}") from None

    def alive(self) -> dict[str, int | None]:
        """The exit code of each process, negative for a signal; None while it runs."""
        return {name: process.poll() for name, process in self.processes.items()}

    def report(self) -> None:
        """Let every living rank write its report; returns when they are there, at the latest after two seconds."""
        ranks = [name for name, code in self.alive().items() if code is None and name != "agent"]
        paths = {name: self.folder / f"{name.replace(' ', '')}.json" for name in ranks}
        before = {name: _inode(path) for name, path in paths.items()}
        for name in ranks:
            self.processes[name].send_signal(signal.SIGUSR1)
        limit = time.monotonic() + 2.0
        while time.monotonic() < limit and any(_inode(paths[name]) == before[name] for name in ranks):
            time.sleep(0.01)

    def stop_ranks(self) -> None:
        """End all ranks."""
        self._stop([name for name in self.processes if name != "agent"])

    def _stop(self, names: list[str]) -> None:
        for name in names:
            if self.processes[name].poll() is None:
                self.processes[name].terminate()
        limit = time.monotonic() + GRACE_S
        for name in names:
            try:
                self.processes[name].wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.processes[name].kill()
                self.processes[name].wait()

    def stop(self) -> None:
        """End everything and take away what lies about."""
        self._stop(list(self.processes))
        if self.hardware:
            self.hardware.close()
        ctypes.CDLL(None).umount2(os.fsencode(self.folder / "lib"), 2)
        (self.folder / "lib").rmdir()
        remove(Path(self.spec["fabric"]))

    def obey(self, order: str) -> Any:
        """Carry out one order; what it answers."""
        if order == "alive":
            return self.alive()
        {"report": self.report, "stop_ranks": self.stop_ranks, "restart_ranks": self.restart_ranks}[order]()
        return None


def _inode(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (0, 0)
    return (stat.st_ino, stat.st_mtime_ns)


def main() -> int:
    """Start the machine, obey until the input ends, stop it."""
    machine = Machine(json.loads(sys.argv[1]))
    try:
        machine.start()
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            print(json.dumps(machine.obey(json.loads(line))), flush=True)
    except BrokenPipeError:
        return 0  # the fleet is gone
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        machine.stop()
    return 0
