"""An emulated machine seen from the fleet: a set of namespaces (PID, UTS, mount) and the orders given to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
UNSHARE = ("unshare", "--fork", "--kill-child", "--uts", "--mount")
OWN_PIDS = ("--pid", "--mount-proc")
ROOM_BYTES = 1 << 20
"""With less room than this a machine cannot write what it needs, nor why."""


class FleetError(OSError):
    """The fleet can't be started or no longer answers; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """What a machine is started with: `ranks` are command lines by rank, `agent` is one or None."""

    name: str
    folder: Path
    libraries: Path
    fabric: Path
    ranks: dict[int, list[str]]
    agent: list[str] | None
    nccl: Path | None = None
    """NVIDIA's own libnccl, where the ranks shall run on that."""
    own_pids: bool = True
    """Whether it has a PID namespace; without one, an agent sees the ranks that is in a container beside them."""

    def to_json(self) -> str:
        """For the machine's first process."""
        return json.dumps(
            {
                "name": self.name,
                "folder": str(self.folder),
                "libraries": str(self.libraries),
                "fabric": str(self.fabric),
                "ranks": self.ranks,
                "agent": self.agent,
                "nccl": str(self.nccl) if self.nccl else None,
            }
        )


def command(module: str, arguments: Sequence[str]) -> list[str]:
    """A light Python process that runs `main` of a module of this package."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from emulator.{module} import main; sys.exit(main())"
    return [sys.executable, "-I", "-S", "-B", "-c", start, *arguments]


def check_rights() -> None:
    """Raise FleetError unless this process can make namespaces."""
    if os.geteuid() != 0:
        raise FleetError("an emulated fleet needs root, to make PID, UTS and mount namespaces: run it with sudo")
    if not shutil.which("unshare"):
        raise FleetError("an emulated fleet needs the program unshare: apt-get install util-linux")


class Machine:
    """One machine. Raises FleetError when it can't be started or answers no more."""

    def __init__(self, spec: MachineSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[str] | None = None

    def spawn(self) -> None:
        """Begin to start it; `wait_ready` waits."""
        self.spec.folder.mkdir(parents=True, exist_ok=True)
        with (self.spec.folder / "machine.log").open("a") as log:
            self._process = subprocess.Popen(
                [*UNSHARE, *OWN_PIDS * self.spec.own_pids, *command("cluster.machine_init", [self.spec.to_json()])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches the fleet alone, which stops its machines in order
            )

    def wait_ready(self) -> None:
        """Wait until its processes are started."""
        self._answer()

    def send(self, order: str) -> None:
        """Give an order; the answer must be fetched with `receive` before the next."""
        stdin = self._pipe("stdin")
        try:
            stdin.write(json.dumps(order) + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None

    def receive(self) -> Any:
        """The answer to the last order."""
        return self._answer()

    def close(self) -> None:
        """Begin to stop it: nothing more will be ordered."""
        if self._process and self._process.stdin:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                return  # it is gone already

    def join(self, seconds: float) -> None:
        """Wait until it is gone; kill it after that time."""
        if not self._process:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._process = None

    def _pipe(self, name: str) -> IO[str]:
        pipe: IO[str] | None = getattr(self._process, name) if self._process else None
        if pipe is None or pipe.closed:
            raise FleetError(f"machine {self.spec.name} is not running")
        return pipe

    def _answer(self) -> Any:
        line = self._pipe("stdout").readline()
        if not line:
            raise self._failure()
        return json.loads(line)

    def _failure(self) -> FleetError:
        text = (self.spec.folder / "machine.log").read_text().strip().splitlines()
        free = shutil.disk_usage(self.spec.folder).free
        mute = "it ended without a word" if free >= ROOM_BYTES else f"the disk of {self.spec.folder} has no room left"
        reason = text[-1] if text else mute
        hint = " (namespaces need CAP_SYS_ADMIN; in a container, run it privileged)" if "unshare" in reason else ""
        return FleetError(f"machine {self.spec.name} failed: {reason}{hint}")
