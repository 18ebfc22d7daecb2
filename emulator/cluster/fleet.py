"""An emulated GPU fleet on one computer: machines that train together, faults on demand, exact counts at the end."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from emulator.cluster.machine import FleetError, Machine, MachineSpec, check_rights, command
from emulator.hardware.nvml_layout import GPUS
from emulator.libraries.build import BuildError, build
from emulator.shared import fabric, faults
from emulator.shared.trainings import lacks

STOP_S = 5.0
AgentCommand = Callable[[str], "list[str] | None"]


class Fleet:
    """Machines m00, m01, … with `gpus` ranks each, one training task over all; a context manager.

    `agent` gives each machine's agent as a command line, by machine name. Logs and reports lie in
    `folder`/<machine>/; without a folder they go to a temporary one that is deleted at the end. `rank_options` are
    handed to every rank (see trainer.py). `nccl` is NVIDIA's own library, to be used for the emulated one;
    `training` is one of TRAININGS. Without `own_pids` no machine has a PID namespace. Raises FleetError,
    FaultError, BuildError: one line each.
    """

    def __init__(
        self,
        folder: Path | None = None,
        machines: int = 6,
        gpus: int = 1,
        tensor: int = 1,
        pipeline: int = 1,
        seed: int = 0,
        agent: AgentCommand | None = None,
        rank_options: Sequence[str] = (),
        nccl: Path | None = None,
        training: str = "ahead",
        own_pids: bool = True,
    ) -> None:
        world = machines * gpus
        if gpus > GPUS:
            raise FleetError(f"an emulated machine has 1 to {GPUS} GPUs, not {gpus}")
        if min(machines, gpus, tensor, pipeline) < 1 or world > fabric.RANKS or world % (tensor * pipeline):
            raise FleetError(
                f"{machines} machines of {gpus} GPUs can't be split into tensor {tensor} x pipeline {pipeline} groups "
                f"(at most {fabric.RANKS} GPUs)"
            )
        if missing := lacks(training, pipeline, world // (tensor * pipeline)):
            raise FleetError(f"training {training} needs {missing}")
        self.names = tuple(f"m{i:02d}" for i in range(machines))
        self._temporary = folder is None
        own = Path(tempfile.gettempdir()) / f"peerwatch-fleet-{uuid.uuid4().hex[:12]}"
        self.folder = own if folder is None else folder.resolve()
        self._gpus, self._world, self._shape = gpus, world, (tensor, pipeline)
        self._seed, self._agent, self._rank_options = seed, agent, tuple(rank_options)
        self._nccl, self._training, self._own_pids = nccl, training, own_pids
        self._machines: dict[str, Machine] = {}
        self._fabric: fabric.Fabric | None = None
        self._broken = False

    def __enter__(self) -> Fleet:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def fabric_path(self) -> Path:
        """The file that all ranks share."""
        return self.folder / "fabric"

    def start(self) -> None:
        """Build the libraries, make the machines, start ranks and agents."""
        check_rights()
        libraries = build()
        self.folder.mkdir(mode=0o700 if self._temporary else 0o755, parents=True, exist_ok=not self._temporary)
        self._weave()
        for index, name in enumerate(self.names):
            self._machines[name] = Machine(self._spec(index, name, libraries.folder))
            self._machines[name].spawn()
        for machine in self._machines.values():
            machine.wait_ready()

    def _weave(self) -> None:
        fabric.remove(self.fabric_path)
        fabric.create(self.fabric_path, self._world, self._gpus)
        self._fabric = fabric.Fabric(self.fabric_path)

    def _spec(self, index: int, name: str, libraries: Path) -> MachineSpec:
        folder = self.folder / name
        ranks = {rank: self._rank_command(rank, folder) for rank in range(index * self._gpus, (index + 1) * self._gpus)}
        agent = self._agent(name) if self._agent else None
        return MachineSpec(name, folder, libraries, self.fabric_path, ranks, agent, self._nccl, self._own_pids)

    def _rank_command(self, rank: int, folder: Path) -> list[str]:
        tensor, pipeline = self._shape
        named = {
            "rank": rank,
            "world": self._world,
            "tensor": tensor,
            "pipeline": pipeline,
            "data": self._world // (tensor * pipeline),
            "gpu": rank % self._gpus,
            "seed": self._seed + rank,
            "report": folder / f"rank{rank}.json",
            "fabric": self.fabric_path,
            "library-folder": folder / "lib",
            "training": self._training,
        }
        real = ["--real-nccl"] if self._nccl else []
        return command(
            "training.main", [f"--{key}={value}" for key, value in named.items()] + real + [*self._rank_options]
        )

    def rank(self, machine: str, gpu: int = 0) -> int:
        """The rank on that GPU. Raises FleetError when there is none."""
        if machine not in self.names or not 0 <= gpu < self._gpus:
            raise FleetError(
                f"no GPU {gpu} on {machine}: there are {self.names[0]} to {self.names[-1]}, {self._gpus} each"
            )
        return self.names.index(machine) * self._gpus + gpu

    def inject(self, kind: str, machine: str, gpu: int = 0, amount: float | None = None) -> int:
        """Give one rank a fault, from now on; returns the time, Unix ns. Amounts and their meaning: faults.AMOUNTS."""
        faults.order(self._shared(), self.rank(machine, gpu), kind, amount)
        self._broken = self._broken or kind in faults.FATAL
        return time.time_ns()

    def heal(self) -> None:
        """End all faults. If the task can't go on (a rank is dead, or a collective never ends) its ranks restart."""
        for rank in range(self._world):
            faults.order(self._shared(), rank, "none")
        if self._broken:
            self.restart()

    def restart(self) -> None:
        """Restart all ranks; machines and agents go on."""
        self._all("stop_ranks")
        self._weave()
        self._all("restart_ranks")
        self._broken = False

    def progress(self) -> dict[str, list[fabric.Progress]]:
        """How far each rank is, by machine, in order of GPUs."""
        shared = self._shared()
        return {
            name: [shared.progress(index * self._gpus + gpu) for gpu in range(self._gpus)]
            for index, name in enumerate(self.names)
        }

    def reports(self) -> dict[str, dict[int, dict[str, Any]]]:
        """The ranks' own reports (counts of calls by name, history of iterations), by machine and rank.

        While the fleet runs they are asked for fresh ones; afterwards the last ones are read.
        """
        if self._machines:
            self._all("report")
        found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in self.names}
        for name in self.names:
            for path in sorted((self.folder / name).glob("rank*.json")):
                report = json.loads(path.read_text())
                found[name][report["rank"]] = report
        return found

    def alive(self) -> dict[str, dict[str, int | None]]:
        """By machine, the exit code of each process ("rank 0", "agent"), None while it runs."""
        return self._all("alive")

    def stop(self) -> None:
        """End every process and remove all but logs and reports."""
        for machine in self._machines.values():
            machine.close()
        for machine in self._machines.values():
            machine.join(STOP_S)
        self._machines.clear()
        self._fabric = None
        fabric.remove(self.fabric_path)
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _all(self, order: str) -> dict[str, Any]:
        for machine in self._machines.values():
            machine.send(order)
        return {name: machine.receive() for name, machine in self._machines.items()}

    def _shared(self) -> fabric.Fabric:
        if self._fabric is None:
            raise FleetError("the fleet is not running")
        return self._fabric


def _show(fleet: Fleet) -> str:
    """One line: by machine, seconds of the last iteration and of its waiting for collectives."""
    return "  ".join(
        f"{name} {'/'.join(f'{at.iteration_seconds:.2f}s({at.collective_seconds:.2f})' for at in progress)}"
        for name, progress in fleet.progress().items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a fleet by hand: a line a second, a fault after a third of the time, the counts at the end."""
    parser = argparse.ArgumentParser(prog="python -m emulator.cluster.fleet", description=__doc__)
    for name, default in (("machines", 6), ("gpus", 1), ("tensor", 1), ("pipeline", 1), ("seconds", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fault", default="none", choices=faults.KINDS)
    parser.add_argument("--machine", default="m00")
    parser.add_argument("--share-pids", action="store_true", help="no PID namespaces: for an agent in a container")
    given = parser.parse_args(arguments)
    try:
        shape = given.machines, given.gpus, given.tensor, given.pipeline
        with Fleet(None, *shape, own_pids=not given.share_pids) as fleet:
            for second in range(given.seconds):
                if second == given.seconds // 3:
                    fleet.inject(given.fault, given.machine)
                    print(f"--- {given.fault} on {given.machine}", flush=True)
                time.sleep(1)
                print(_show(fleet), flush=True)
            for name, ranks in fleet.reports().items():
                print(name, {rank: sum(report["calls"].values()) for rank, report in ranks.items()}, "calls")
    except (FleetError, BuildError, faults.FaultError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
