"""`peerwatch profile`: which function behaves otherwise in which rank, from one window of stack samples."""

from __future__ import annotations

import socket
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption, is_file_name
from cli.terminal import progress, say, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from analysis.profile.collection import Collected
    from analysis.profile.samples import Samples

SECOND = 10**9


def profile(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tasks (as `tasks` names them) or this machine's name: its training processes, which the store knows; "
            "or files of samples from several machines (--save); else all training processes of this machine."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, max=120, help="Length of the window, seconds.")] = 20,
    pid: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**22, help="Sample this process; may be repeated. Needs no store."),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Save the samples in this folder, a file a process.")] = None,
    json: JsonOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Sample the functions of all ranks here in one window, and name functions that differ between ranks."""
    from analysis.profile.patterns import abnormal
    from analysis.profile.samples import read_samples
    from cli.views.analysis.profile import as_json, show

    if what and is_file_name(what[0]):
        samples, taken = read_samples({Path(name).stem: Path(name) for name in what}, seconds), None
    else:
        processes = {f"pid {one}": one for one in pid} if pid else _processes(what or [], store, config)
        samples, taken = _taken(processes, seconds, save)
    found = abnormal(samples)
    if json:
        say_json(as_json(samples, found, taken))
    else:
        show(samples, found, taken)


def _taken(processes: dict[str, int], seconds: float, save: Path | None) -> tuple[Samples, Collected]:
    """The samples of these processes, and what taking them cost."""
    from analysis.profile.collection import collect
    from analysis.profile.samples import SampleError, read_samples

    with tempfile.TemporaryDirectory(prefix="peerwatch-profile-") as own:
        folder = save or Path(own)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{folder} cannot be made: {error.strerror}; use another --save") from error
        with progress("sampling", (0, round(seconds * SECOND))) as tell:
            taken = collect(processes, folder, seconds, lambda done: tell(round(done * SECOND)))
        if not taken.files:
            name, why = next(iter(taken.failed.items()))
            raise SampleError(
                f"no process could be sampled ({name}: {why}): name training processes of Python that run, as their "
                "user or as root"
            )
        for name, why in taken.failed.items():
            say(f"{name} is left out: {why}", err=True)
        return read_samples(taken.files, seconds), taken


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
            f"{wanted} no training process on this machine ({here}); run it on the training machine, name --pid, "
            "or files of samples that --save wrote there"
        )
    return found
