"""`peerwatch profile`: which function behaves otherwise in which rank, from one window of samples of all ranks."""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import locate_store, open_place, open_signed
from cli.options import ConfigOption, JsonOption, StoreOption, is_file_name
from cli.queries.completion import machine_names
from cli.terminal import progress, say_json
from store.schema.contract import Store, StoreError
from store.schema.time import SECOND

if TYPE_CHECKING:
    from cli.views.analysis.profile import Window

MOST_OF_FLEET_S = 60.0
"""Agents give no longer windows."""
_LOCAL_LEAD_S = 2.0


def profile(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tasks (as `tasks` names them) or machines: all their ranks, sampled by their agents in one window; "
            "or files that --save wrote; else all training processes of this machine.",
            autocompletion=machine_names,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=120, help="Length of the window, seconds.")] = 20,
    local: Annotated[
        bool, typer.Option("--local", help="Sample the processes on this machine from here, without its agent.")
    ] = False,
    pid: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**22, help="Sample this process; may be repeated. Needs no store."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save the samples of this machine in this folder, a file a process.")
    ] = None,
    json: JsonOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Sample the functions of all ranks in one window, and name functions that differ between ranks."""
    from cli.views.analysis.profile import Window, as_json, show

    if what and is_file_name(what[0]):
        from analysis.profile.samples import read_samples

        window = Window(read_samples({Path(name).stem: Path(name) for name in what}))
    elif pid or local or not what:
        processes = {f"pid {one}": one for one in pid} if pid else _processes(what or [], store, config)
        window = _taken_here(processes, seconds, save)
    else:
        if save:
            raise ValueError("--save is for this machine's samples: the store has those of the fleet (table profile)")
        window = _taken_by_agents(what, seconds, store, config)
    if json:
        say_json(as_json(window))
    else:
        show(window)


def _taken_by_agents(what: list[str], seconds: float, store: str | None, config: Path | None) -> Window:
    """One window of all ranks of these tasks and machines."""
    from analysis.profile.samples import samples_of
    from cli.queries.analysis.fleet_profile import collect, lead_seconds, order
    from cli.views.analysis.profile import Window

    if seconds > MOST_OF_FLEET_S:
        raise ValueError(f"agents give {MOST_OF_FLEET_S:.0f} s at most: use a smaller --seconds")
    place, settings = locate_store(store, config)
    with closing(open_signed(place, False, settings)) as source:
        team, only = _meant(source, what, place)
        request = order(source, team, seconds, lead_seconds(place))
        label = f"sampling on {len(team)} machine{'s' * (len(team) != 1)}"
        with progress(label, (request.time, request.until)) as tell:
            found = collect(source, request, team, only, tell)
    samples = samples_of(found.sampled.items(), seconds)
    return Window(
        samples, found.nccl.shares, found.cpu_seconds, found.failed, found.readers, found.late_seconds,
        found.nccl.iteration_before, found.nccl.iteration_during,
    )  # fmt: skip


def _meant(source: Store, what: list[str], place: str) -> tuple[list[str], set[tuple[str, int]]]:
    """The machines that are meant, and the processes, where tasks are named: other tasks may run on them."""
    from cli.queries.jobs import is_meant, read_named_tasks
    from cli.queries.names import matching

    span = source.span()
    named = read_named_tasks(source, span[1]) if span else []
    tasks = {word: [task for name, task in named if is_meant(word, name, task)] for word in what}
    machines = matching(source, [word for word in what if not tasks[word]], place, "task or machine")
    only = {process for found in tasks.values() for task in found for process in task.processes}
    only |= {process for _, task in named for process in task.processes if process[0] in machines} if only else set()
    return sorted({machine for machine, _ in only} | set(machines)), only


def _taken_here(processes: dict[str, int], seconds: float, save: Path | None) -> Window:
    """The samples of these processes of this machine, and what taking them cost."""
    from agent.stacks.py_spy import spy_path
    from agent.stacks.sampled import SampleError
    from agent.stacks.window import MOST_PROCESSES, sample
    from analysis.profile.samples import samples_of
    from cli.views.analysis.profile import Window

    if len(processes) > MOST_PROCESSES:
        raise SampleError(f"at most {MOST_PROCESSES} processes at once: name some with --pid")
    with tempfile.TemporaryDirectory(prefix="peerwatch-profile-") as folder:
        with progress("sampling", (0, round(seconds * SECOND))) as tell:
            window = Path(folder), spy_path(), time.monotonic() + _LOCAL_LEAD_S, seconds
            taken = sample([*processes.values()], *window, tell=lambda done: tell(round(done * SECOND)))
        if save:
            _save({name: Path(folder, f"{pid}.json") for name, pid in processes.items()}, save)
    found = {name: taken[pid] for name, pid in processes.items()}
    failed = {name: one.error for name, one in found.items() if not one.sampled.seen}
    if len(failed) == len(found):
        name, why = next(iter(failed.items()))
        raise SampleError(
            f"no process could be sampled ({name}: {why}): name training processes that run, as their user or as root"
        )
    sampled = {name: one for name, one in found.items() if name not in failed}
    readers = {name: f"{one.reader} ({one.error})" if one.error else one.reader for name, one in sampled.items()}
    samples = samples_of(((name, one.sampled) for name, one in sampled.items()), seconds)
    late = max(one.late_seconds for one in sampled.values())
    return Window(samples, {}, sum(one.cpu_seconds for one in found.values()), failed, readers, late)


def _save(files: dict[str, Path], folder: Path) -> None:
    """Copy the files of samples that were written. Raises OSError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            if file.exists():
                shutil.copy(file, folder / f"{name.replace('/', '_')}.json")
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error.strerror}; use another --save") from error


def _processes(what: list[str], store: str | None, config: Path | None) -> dict[str, int]:
    """Name -> pid of the training processes of this machine that are meant."""
    from cli.queries.jobs import is_meant, read_named_tasks

    place, settings = locate_store(store, config)
    here = settings.agent.machine or socket.gethostname()
    with closing(open_place(place, settings=settings)) as source:
        span = source.span()
        tasks = read_named_tasks(source, span[1]) if span else []
    named = [one for name, one in tasks if not what or here in what or any(is_meant(word, name, one) for word in what)]
    found = {f"{machine} pid {pid}": pid for one in named for machine, pid in one.processes if machine == here}
    if not found:
        wanted = f"{', '.join(what)} has" if what else f"{place} knows"
        raise StoreError(
            f"{wanted} no training process on this machine ({here}); name a task (peerwatch tasks) to have all its "
            "machines sampled, or --pid, or files of samples that --save wrote"
        )
    return found
