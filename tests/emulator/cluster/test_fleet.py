"""The fleet: machines as namespaces, faults by machine, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator.cluster.fleet import Fleet, main
from emulator.cluster.machine import ROOT, FleetError
from emulator.libraries.build import build
from emulator.shared.faults import FaultError

FAST = ("--load=0.01", "--compute=0.03", "--optimizer=0.005", "--gradient-bytes=50000000")
LOOK = "hostname; ls -di /proc/self/ns/pid; echo $$; stat -c '%d:%i' lib/libnccl.so.2; exec sleep 600"


def left_behind(folder: Path) -> list[str]:
    """Processes that know the folder, mounts below it, and what should not stay in it."""
    found = [line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder).encode() in words and path.parent.name != str(os.getpid()):
            found.append(f"{path}: {words!r}")
    found += [str(path) for name in ("fabric", "*/lib") for path in folder.glob(name)]
    return found


def wait_for(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    """Fail unless it comes to hold within that time."""
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def wait_iterations(fleet: Fleet, count: int) -> None:
    """Wait until every rank has done that many."""
    wait_for(lambda: all(at.iterations >= count for ranks in fleet.progress().values() for at in ranks))


@pytest.mark.usefixtures("rooted")
def test_machines_train_and_leave_nothing(tmp_path: Path) -> None:
    """Machines of two GPUs train together; in the end no process, no mount and only logs and reports are left."""
    with Fleet(tmp_path, machines=3, gpus=2, tensor=2, rank_options=FAST) as fleet:
        wait_iterations(fleet, 4)
        assert left_behind(tmp_path)
        reports = fleet.reports()
        assert {name: sorted(ranks) for name, ranks in reports.items()} == {"m00": [0, 1], "m01": [2, 3], "m02": [4, 5]}
        assert {ranks[rank]["machine"] for ranks in reports.values() for rank in ranks} == {"m00", "m01", "m02"}
        assert all(code is None for processes in fleet.alive().values() for code in processes.values())
    assert left_behind(tmp_path) == []
    for name, ranks in fleet.reports().items():
        for rank, report in ranks.items():
            assert report["calls"]["ncclAllGather"] >= 4, (name, rank)


@pytest.mark.usefixtures("rooted")
def test_machine_is_a_set_of_namespaces(tmp_path: Path) -> None:
    """Each machine has its own name, PID namespace and copies of the libraries; its agent lives in it."""
    agent = ["sh", "-c", f"cd {tmp_path}/$(hostname); {LOOK}"]
    with Fleet(tmp_path, machines=2, agent=lambda name: agent if name == "m01" else None, rank_options=FAST) as fleet:
        wait_iterations(fleet, 2)
        assert fleet.alive() == {"m00": {"rank 0": None}, "m01": {"rank 1": None, "agent": None}}
        name, namespace, pid, library = (tmp_path / "m01/agent.log").read_text().splitlines()
        rank_pid = fleet.reports()["m01"][1]["pid"]
    assert name == "m01"
    assert namespace.split()[0] != str(os.stat("/proc/self/ns/pid").st_ino)
    assert int(pid) < 20
    assert rank_pid < 20
    outside = os.stat(build().nccl)
    assert library != f"{outside.st_dev}:{outside.st_ino}"


@pytest.mark.usefixtures("rooted")
@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel shares no processors by session")
def test_machines_have_the_priority_of_their_fleet(tmp_path: Path) -> None:
    """The session of a machine is as nice as the process that starts the fleet."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    agent = ["sh", "-c", "cat /proc/self/autogroup; exec sleep 600"]
    os.setpriority(os.PRIO_PROCESS, 0, before - 3)
    try:
        with Fleet(tmp_path, machines=1, agent=lambda name: agent, rank_options=FAST) as fleet:
            wait_iterations(fleet, 1)
            wait_for(lambda: (tmp_path / "m00/agent.log").read_text().endswith(f" nice {before - 3}\n"))
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@pytest.mark.usefixtures("rooted")
def test_fault_strikes_the_machine_named(tmp_path: Path) -> None:
    """A slow GPU on one machine lets the others wait; healing ends it; a dead rank is healed by a restart."""
    with Fleet(tmp_path, machines=3, rank_options=FAST) as fleet:
        wait_iterations(fleet, 3)
        fleet.inject("slow_gpu", "m01", amount=5.0)
        wait_iterations(fleet, fleet.progress()["m00"][0].iterations + 5)
        waits = {name: ranks[0].collective_seconds for name, ranks in fleet.progress().items()}
        assert waits["m01"] < 0.5 * min(waits["m00"], waits["m02"])
        fleet.inject("rank_exit", "m02")
        wait_for(lambda: fleet.alive()["m02"]["rank 2"] == -9)
        fleet.heal()
        assert fleet.alive()["m02"]["rank 2"] is None
        wait_iterations(fleet, 3)
        assert all(at[0].iteration_seconds < 0.15 for at in fleet.progress().values())


@pytest.mark.usefixtures("rooted")
def test_failing_agent_is_reported_and_harms_no_other(tmp_path: Path) -> None:
    """An agent that ends is seen by its exit code and in its log; the ranks train on."""
    agent = ["sh", "-c", "echo broken >&2; exit 7"]
    with Fleet(tmp_path, machines=2, agent=lambda name: agent, rank_options=FAST) as fleet:
        wait_iterations(fleet, 3)
        assert {processes["agent"] for processes in fleet.alive().values()} == {7}
    assert (tmp_path / "m00/agent.log").read_text() == "broken\n"
    assert left_behind(tmp_path) == []


@pytest.mark.usefixtures("rooted")
def test_missing_agent_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """An agent that can't be started stops the fleet with its reason."""
    with pytest.raises(FleetError, match=r"^machine m00 failed: can't start the agent: .*/nowhere/agent'$"):
        Fleet(tmp_path, machines=2, agent=lambda name: ["/nowhere/agent"]).__enter__()
    wait_for(lambda: left_behind(tmp_path) == [])


@pytest.mark.usefixtures("rooted")
@pytest.mark.parametrize("signal_name", ["INT", "KILL"])
def test_death_of_the_parent_ends_all(tmp_path: Path, signal_name: str) -> None:
    """Ctrl-C and even SIGKILL on the process that holds the fleet leave no process, mount, library or fabric."""
    program = (
        "import sys, time; from pathlib import Path; from emulator.cluster.fleet import Fleet\n"
        f"with Fleet(Path({str(tmp_path)!r}), machines=2): print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == "up\n"
        wait_for(lambda: (tmp_path / "m01/rank1.log").exists())
        parent.send_signal(signal.Signals[f"SIG{signal_name}"])
        parent.wait(10)
    wait_for(lambda: left_behind(tmp_path) == [])


@pytest.mark.usefixtures("rooted")
def test_unknown_fault_and_machine_are_refused(tmp_path: Path) -> None:
    """A fault or a machine that does not exist is one line; the fleet goes on."""
    with Fleet(tmp_path, machines=2, rank_options=FAST) as fleet:
        with pytest.raises(FaultError, match="unknown fault 'slow_cat'"):
            fleet.inject("slow_cat", "m00")
        with pytest.raises(FleetError, match="no GPU 0 on m02: there are m00 to m01, 1 each"):
            fleet.inject("slow_gpu", "m02")
        wait_iterations(fleet, 2)


def test_impossible_shape_is_refused(tmp_path: Path) -> None:
    """A world that its groups don't divide, and a machine of too many GPUs, are refused before anything starts."""
    with pytest.raises(FleetError, match="3 machines of 1 GPUs can't be split into tensor 2"):
        Fleet(tmp_path, machines=3, tensor=2)
    with pytest.raises(FleetError, match="has 1 to 16 GPUs, not 17"):
        Fleet(tmp_path, machines=2, gpus=17)


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without root the fleet names what is missing, in one line, and its command ends with 1."""
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    assert main(["--machines=2", "--seconds=1"]) == 1
    assert capsys.readouterr().err == (
        "an emulated fleet needs root, to make PID, UTS and mount namespaces: run it with sudo\n"
    )
