"""The `peerwatch` command: the list of commands, and the place where an error becomes one line and an exit code."""

from __future__ import annotations

import errno
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.commands.analysis import behaviour, check, history, jobs, operators, placement, profile, stragglers, suspects
from cli.commands.data import copy, export, import_dataset, replay, simulate
from cli.commands.evaluation import calibrate, evaluate, train, train_minder
from cli.commands.fleet import doctor, report, show, status, tasks, top
from cli.commands.operator import alerts, configuration, orders
from cli.commands.service import agent, demo, detector, up, writer
from cli.config import PLACE
from cli.options import ORDER
from cli.terminal import guard, hang_up, say

FAILED, UNKNOWN, INTERRUPTED, HUNG_UP = 1, 3, 130, 141
"""INTERRUPTED and HUNG_UP are 128 + SIGINT and 128 + SIGPIPE, as shells report them."""


class Commands(TyperGroup):
    """Runs a command; an error that the user can correct is one line on standard error."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and turn an exception into an exit code."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            hang_up()
            raise typer.Exit(HUNG_UP) from error
        except ModuleNotFoundError as error:
            if ctx.params.get("debug"):
                raise
            remedy = "install the package peerwatch-detector, or run make install"
            say(f"peerwatch: this needs {error.name}, which is not installed here: {remedy}", err=True)
            raise typer.Exit(_failure(ctx)) from error
        except (OSError, ValueError) as error:
            if ctx.params.get("debug"):
                raise
            say(f"peerwatch: {_line(error)}", err=True)
            raise typer.Exit(_failure(ctx)) from error
        except Exception as error:
            # A wrong option exits with 2, except in `status`, where 2 means that a machine is faulty.
            if getattr(error, "exit_code", None) == 2 and not isinstance(error, typer.Exit):
                error.exit_code = _failure(ctx, 2)  # type: ignore[attr-defined]
            raise


def _line(error: OSError | ValueError) -> str:
    """The first line of the error; for errors of the operating system file and reason, without the number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the output cannot be written: no space is left where it goes"
    return next(iter(str(error).splitlines()), type(error).__name__)


def _failure(ctx: Any, code: int = FAILED) -> int:
    return UNKNOWN if ctx.invoked_subcommand == "status" else code


app = typer.Typer(
    cls=Commands,
    help="Monitor GPU training fleets from outside, and name the machine that differs from its peers.",
    epilog=f"Configuration: {PLACE}. The store: {ORDER}.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        say(f"peerwatch {version('peerwatch')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option(help="Print the traceback of an error.")] = False,
) -> None:
    """Options before the command."""


app.command()(demo.demo)
app.command()(status.status)
app.command()(top.top)
app.command()(show.show)
app.command()(tasks.tasks)
app.command()(doctor.doctor)
app.command()(orders.ack)
app.command()(orders.clear)
app.command()(orders.maintenance)
app.command()(placement.placement)
app.command()(operators.operators)
app.command()(behaviour.behaviour)
app.command()(profile.profile)
app.command()(up.up)
app.command()(replay.replay)
app.command()(simulate.simulate)
app.command()(evaluate.evaluate)
app.command()(calibrate.calibrate)
app.command("import")(import_dataset.dataset)
app.command("train-minder")(train_minder.train_minder)
app.command("train-operator-model")(train.train_operator_model)
app.command("train", hidden=True, deprecated=True)(train.train)
app.command()(history.history)
app.add_typer(suspects.app, name="suspects")
app.command()(check.check)
app.command()(jobs.jobs)
app.command()(export.export)
app.command()(copy.copy)
app.add_typer(alerts.app, name="alerts")
app.add_typer(configuration.app, name="config")
report.app.command()(stragglers.stragglers)
app.add_typer(report.app, name="report")
app.command()(agent.agent)
app.command()(detector.detector)
app.command()(writer.writer)


def main() -> None:
    """The command `peerwatch`."""
    guard()
    try:
        app(prog_name="peerwatch")
    except SystemExit as end:
        # Rich and click, which print help, exit with 1 where the reader has gone.
        if isinstance(end.__context__, BrokenPipeError):
            hang_up()
            sys.exit(HUNG_UP)
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:  # only what prints help gets here without a command
            raise
        say(f"peerwatch: {_line(error)}", err=True)
        sys.exit(FAILED)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # the reader closed before the last line
            hang_up()
            sys.exit(HUNG_UP)


if __name__ == "__main__":
    main()
