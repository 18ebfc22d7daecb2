"""`peerwatch check`: active checks of suspects with what is installed on them; results go to the store as evidence."""

from __future__ import annotations

import json as jsonlib
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.config import locate_store, open_place
from cli.options import ConfigOption, JsonOption, StoreOption
from cli.queries.completion import machine_names
from cli.terminal import console, say, say_json
from store.schema.contract import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from analysis.checks.machine import Result
    from cli.config import Settings

_FAILED, _NONE = 2, 1
_SSH_SLACK_S = 60.0
_MARKS = {"passed": "passed", "failed": "FAILED", "error": "ERROR", "cut off": "CUT OFF", "missing": "missing"}


def check(
    machine: Annotated[
        list[str] | None,
        typer.Argument(help="Suspects; this host by its own name.", autocompletion=machine_names),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this check: dcgm, gemm, nccl, ib; may be repeated.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(min=1.0, help="Time limit of each check, in seconds; else its own.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also where a job trains: it is disturbed.")] = False,
    no_store: Annotated[bool, typer.Option("--no-store", help="Read no store, and write no result to one.")] = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Check machines actively: GPU diagnostics, matrix products, all-reduce, RDMA; each with a time limit.

    Other machines are reached by ssh and need peerwatch; several are also checked in pairs. Exit code 0: what could be
    checked passed; 2: a check failed, ended in an error or was cut off; 1: nothing could be checked.
    """
    from analysis.checks.machine import run_pairs
    from analysis.checks.tools import CHECKS

    wanted = [CHECKS[name] for name in _known(only, list(CHECKS))]
    place, settings = locate_store(store, config, writing=True)
    if not machine:
        raise ValueError("name the machines to check, such as: peerwatch check m07")
    goes_to, agent = None if no_store else (place, settings), settings.agent.name
    machine = list(dict.fromkeys(agent if name in _own(agent) else name for name in machine))
    if not force:
        _refuse_busy(machine, agent, goes_to)
    results: list[Result] = []
    for name in machine:
        found = _local(name, wanted, limit) if name in _own(agent) else _remote(name, only, limit, force)
        results += _published(found, json, goes_to)
    if len(machine) > 1 and not only:
        results += _published(run_pairs(machine), json, goes_to)
    if json:
        say_json({"results": [one.as_json() for one in results]})
    outcomes = {one.outcome for one in results}
    if outcomes & {"failed", "error", "cut off"}:
        raise typer.Exit(_FAILED)
    if "passed" not in outcomes:
        raise typer.Exit(_NONE)


def _refuse_busy(names: list[str], agent: str, goes_to: tuple[str, Settings] | None) -> None:
    """Raise StoreError for the first machine that trains, before anything is run."""
    from analysis.checks.machine import trains

    busy = dict.fromkeys(names, False)
    if goes_to:
        with closing(open_place(goes_to[0], settings=goes_to[1])) as source:
            busy = {name: trains(source, name, time.time_ns()) for name in names}
    for name in names:
        if reason := _refusal(name, agent, busy[name]):
            raise StoreError(f"{name} {reason}; wait for the end of its job, or use --force")


def _published(found: Iterable[Result], json: bool, goes_to: tuple[str, Settings] | None) -> list[Result]:
    """The results, each printed as it comes, then written to the store."""
    from analysis.checks.machine import batches

    results = []
    for one in found:
        results.append(one)
        if not json:
            where = f"{one.device} " if one.device else ""
            say(f"{one.machine} {one.check:5} {_MARKS[one.outcome]:8}{where}{one.message}")
    if goes_to:
        with closing(open_place(goes_to[0], settings=goes_to[1])) as source:
            source.write(batches(results, time.time_ns()))
    return results


def _known(only: list[str] | None, names: list[str]) -> list[str]:
    for name in only or ():
        if name not in names:
            raise ValueError(f"there is no check {name!r}: known are {', '.join(names)}")
    return only or names


def _own(agent: str) -> tuple[str, ...]:
    """Names of this host."""
    return socket.gethostname(), agent, "localhost"


def _refusal(name: str, agent: str, busy: bool) -> str:
    """Why a machine must not be checked now; empty where it may."""
    from analysis.checks.machine import cuda_processes, has_gpus

    if busy:
        return "trains: the store has NCCL or CUDA calls of the last two minutes"
    if name not in _own(agent) or not has_gpus():
        return ""
    found, whole = cuda_processes()
    if found:
        return f"is in use: process {found[0]} has CUDA open"
    return "" if whole else "may be in use: only root can see all processes"


def _local(name: str, wanted: list[Any], limit: float | None) -> list[Result]:
    from analysis.checks.machine import run_checks

    screen = console(err=True)
    with screen.status(f"checking {name}: {', '.join(check.name for check in wanted)}"):
        return list(run_checks(name, wanted, limit))


def _remote(name: str, only: list[str] | None, limit: float | None, force: bool) -> list[Result]:
    """The same command on another machine, by ssh. Raises StoreError where it gives no results."""
    from analysis.checks.child import run_tool
    from analysis.checks.machine import Result
    from analysis.checks.tools import CHECKS

    if name.startswith("-") or any(sign.isspace() for sign in name):
        raise StoreError(f"{name!r} is no name of a machine: use one of peerwatch status")
    words = ["peerwatch", "check", "localhost", "--json", "--no-store", *(["--force"] if force else [])]
    words += [word for one in only or () for word in ("--only", one)]
    words += ["--limit", f"{limit:g}"] if limit else []
    longest = sum(limit or CHECKS[one].limit_s for one in only or CHECKS) + _SSH_SLACK_S
    with console(err=True).status(f"checking {name} by ssh"):
        ended = run_tool(["ssh", "-o", "BatchMode=yes", name, *words], longest)
    line = next((line for line in ended.output.splitlines() if line.startswith("{")), "")
    try:
        rows = jsonlib.loads(line)["results"]
        return [Result(**{**row, "machine": name}) for row in rows]
    except (ValueError, TypeError, KeyError) as error:
        lines = ended.output.strip().splitlines() or ["no answer"]
        raise StoreError(f"{name} was not checked: {lines[-1][:200]}; run it there: {' '.join(words[:3])}") from error
