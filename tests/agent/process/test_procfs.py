"""What /proc says, however odd."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.process.procfs import Process, Processes, gpu_of, parse_maps, parse_stat

ME = Process(4321, 987)
MAPS = b"""\
558f0a000000-558f0a021000 r-xp 00001000 fd:01 1311 /usr/bin/python3.11
558f0a021000-558f0a041000 r--p 00022000 fd:01 1311 /usr/bin/python3.11
7f10c0000000-7f10c0400000 r-xp 00034000 00:2f 2146769 /venv/lib/a b/libnccl.so.2
7f10c0500000-7f10c0600000 r-xp 00534000 00:2f 2146769 /venv/lib/a b/libnccl.so.2
7f10c1000000-7f10c1001000 r-xp 00000000 fd:01 77 /opt/libcudart.so.12 (deleted)
7f10c2000000-7f10c2001000 rwxp 00000000 00:00 0
7ffd1b3f0000-7ffd1b3f2000 r-xp 00000000 00:00 0 [vdso]
"""


def test_executable_files_of_maps() -> None:
    """Each executable file is listed once, with device, inode and its own path."""
    files = parse_maps(ME, MAPS)
    assert [(file.device, file.inode, file.path) for file in files] == [
        ("fd:01", 1311, "/usr/bin/python3.11"),
        ("00:2f", 2146769, "/venv/lib/a b/libnccl.so.2"),
        ("fd:01", 77, "/opt/libcudart.so.12"),
    ]
    assert files[1].addresses == "7f10c0000000-7f10c0400000"
    assert Processes().paths(files[1]) == (
        "/proc/4321/map_files/7f10c0000000-7f10c0400000",
        "/proc/4321/root/venv/lib/a b/libnccl.so.2",
    )


@given(st.binary(max_size=400) | st.lists(st.sampled_from(MAPS.splitlines()), max_size=9).map(b"\n".join))
def test_maps_never_fail(text: bytes) -> None:
    """Whatever a maps file holds, parsing it gives plausible mappings or none."""
    for file in parse_maps(ME, text):
        assert file.inode > 0
        low, high = file.addresses.split("-")
        assert int(low, 16) >= 0
        assert int(high, 16) >= 0


def test_stat_with_a_hostile_command() -> None:
    """A process that calls itself `x) R 1 (` is read right all the same."""
    fields = " ".join(str(number) for number in range(100, 140))
    assert parse_stat(f"55 (x) R 1 () S {fields}".encode()) == (118, 119, 124)


@given(st.binary(max_size=200))
def test_stat_fails_cleanly(text: bytes) -> None:
    """A stat file of another form is a ValueError, nothing else."""
    try:
        assert all(isinstance(number, int) for number in parse_stat(text))
    except ValueError:
        return


def test_own_process_is_found_and_alive() -> None:
    """This process is alive; the same number with another start or another program's stack is not."""
    processes = Processes()
    me = processes.find(os.getpid())
    assert me is not None
    assert processes.alive(me)
    assert not processes.alive(Process(me.pid, me.start + 1, me.stack))
    assert not processes.alive(Process(me.pid, me.start, me.stack + 4096))
    assert processes.environment(me.pid).get("PATH") == os.environ["PATH"]


def test_changed_tells_each_process_once() -> None:
    """A process that does not grow is listed in one scan only, however many other processes there are."""
    processes = Processes()
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        time.sleep(0.2)  # until it is the program that it will be
        scans = [{process.pid for process, _ in processes.changed()} for _ in range(20)]
        sleeper.kill()
    assert [sleeper.pid in scan for scan in scans].count(True) == 1


def test_vanished_root(tmp_path: Path) -> None:
    """A /proc without readable processes gives nothing and no error."""
    (tmp_path / "12").mkdir()
    (tmp_path / "13").write_text("not a folder")
    assert list(Processes(tmp_path).changed()) == []


@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({"LOCAL_RANK": "5"}, "5"),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "6,7"}, "7"),
        ({"LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "4"}, "4"),
        ({"SLURM_LOCALID": "2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "9"}, "9"),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, None),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "GPU-ab,GPU-cd"}, "1"),
        ({"LOCAL_RANK": "-1"}, None),
        ({"CUDA_VISIBLE_DEVICES": "9" * 1000}, None),
        ({"LOCAL_RANK": "99999999999"}, None),
        ({}, None),
    ],
)
def test_gpu_from_the_launcher(environment: dict[str, str], gpu: str | None) -> None:
    """The launcher's word decides which GPU a process works on; where it says nothing sensible, nothing is guessed."""
    assert gpu_of(environment) == gpu


def test_what_cannot_be_looked_at_is_not_dead(tmp_path: Path) -> None:
    """Only a process that is not there has ended; one that cannot be read raises."""
    (tmp_path / "12" / "stat").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        Processes(tmp_path).find(12)
    assert Processes(tmp_path).find(13) is None


def test_a_calm_process_is_looked_at_rarely_and_not_forgotten() -> None:
    """What has not changed for long may be passed over in some looks; a library that it loads is found all the same."""
    processes = Processes()
    own = os.getpid()
    for _ in range(60):
        list(processes.changed())
    held = mmap.mmap(-1, 987_654_321)  # it grows, as one does that loads a library
    try:
        looks = [any(process.pid == own for process, _ in processes.changed()) for _ in range(16)]
        assert sum(looks) == 1
    finally:
        held.close()
