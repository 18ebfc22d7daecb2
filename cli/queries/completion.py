"""Shell completion: machines, tasks, verdicts and incidents of the store, sinks, kinds of data sets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cli.config import locate_store, open_place
from cli.queries import verdict_history
from cli.queries.fleet_status import LOOK_NS
from cli.queries.names import machines
from cli.terminal import safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from store.schema.contract import Store


def machine_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of machines; none where the store cannot be read."""
    return _begun(_asked(ctx, lambda store: machines(store, LOOK_NS)), incomplete)


def verdict_numbers(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Numbers of recent verdicts with their messages, the latest first."""
    return verdict_history.complete(incomplete, *_place(ctx))


def targets(ctx: typer.Context, incomplete: str) -> list[Any]:
    """What can be acknowledged: machines and numbers of verdicts."""
    return [*machine_names(ctx, incomplete), *verdict_numbers(ctx, incomplete)]


def task_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tasks in the tables `task` and `verdict`."""
    return _begun(_asked(ctx, _tasks), incomplete)


def sink_names(incomplete: str) -> list[str]:
    """Sinks of alerts."""
    from detector.alerts.registry import SINKS

    return _begun(list(SINKS), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Kinds of public data sets."""
    from store.transfer.public_datasets import KINDS

    return _begun(list(KINDS), incomplete)


def _tasks(store: Store) -> list[str]:
    found: set[str] = set()
    for table in ("task", "verdict"):
        rows = store.read(table, columns=("task",))
        found |= set(rows.column("task").unique().to_pylist() if "task" in rows.column_names else [])
    return sorted(filter(None, found))


def _begun(names: list[str], incomplete: str) -> list[str]:
    return [safe(name) for name in names if name.startswith(incomplete)]


def _asked(ctx: typer.Context, ask: Callable[[Store], list[str]]) -> list[str]:
    try:
        place, settings = locate_store(*_place(ctx))
        with closing(open_place(place, settings=settings)) as store:
            return ask(store)
    except (OSError, ValueError):
        return []


def _place(ctx: typer.Context) -> tuple[str | None, Path | None]:
    """The store and the configuration on the command line; `replay` has its store as an argument."""
    given = ctx.params
    return given.get("store") or given.get("folder"), given.get("config")
