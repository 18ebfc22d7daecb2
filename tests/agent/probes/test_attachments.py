"""Libraries are found wherever processes map them from, and each place carries a probe once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.binaries.symbol_lookup import LookupResult
from agent.probes.attachments import Attachments
from agent.probes.library import Library
from agent.process.procfs import MappedFile, Processes
from agent.system.costs import Owner
from emulator.libraries.build import Libraries
from tests.agent.conftest import Watch

pytestmark = pytest.mark.bpf


@pytest.fixture(scope="module")
def seen(lasting_watch: Callable[..., Watch]) -> Watch:
    """One agent for all tests: it reads each file that processes of this machine map once."""
    return lasting_watch()


def listed(seen: Any) -> list[Library]:
    """What an agent lists now."""
    return list(seen.context.attachments.libraries.values())


def total(seen: Any, pid: int) -> int:
    """Operations counted for one process."""
    rows = seen.context.kernel.maps["slots"].rows()
    return int(rows["operations"][rows["tgid"] == pid].sum())


def copies(emulated: Libraries, folder: Path) -> tuple[Path, Path]:
    """Own copies of the two libraries."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(emulated.cudart, folder)), Path(shutil.copy(emulated.nccl, folder))


def test_renamed_library(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A library under a name that says nothing is found by the functions it defines."""
    cudart, nccl = copies(emulated, tmp_path)
    nccl = nccl.rename(tmp_path / "vendored-1f3c.so")
    process = caller(cudart, nccl, calls=13)
    seen.wait_attached(nccl)
    process.call()
    assert total(seen, process.pid) == 13


def test_deleted_library(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A library that was replaced on disk after it was mapped carries its probes all the same."""
    cudart, nccl = copies(emulated, tmp_path)
    process = caller(cudart, nccl, calls=17)
    nccl.unlink()
    nccl.write_text("another file took its name")
    seen.wait_attached(nccl)
    process.call()
    assert total(seen, process.pid) == 17


BUILD = """
#define X __attribute__((visibility("default"), noinline))
#ifdef NEXT
X int ncclNotProbed(int n) { __asm__ volatile(".fill 173, 1, 0x90"); return n; }
#endif
X int ncclAllReduce(void *a, void *b, long n, int t, int o, void *comm, void *s) { __asm__ volatile(""); return 0; }
X int ncclCommInitRank(void **out, int n, char *id, int rank) { __asm__ volatile(""); return 0; }
"""


def built(path: Path, *options: str) -> Path:
    """A library with two of NCCL's functions, in the next version at other places."""
    command = ["cc", "-shared", "-fPIC", "-O1", *options, "-o", str(path), "-x", "c", "-"]
    subprocess.run(command, input=BUILD, text=True, check=True)
    return path


def test_a_library_that_is_overwritten_in_place(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Its probes come off, so that none is at a wrong place of the new version, which gets its own; a cut is borne."""
    nccl = built(tmp_path / "libnccl.so.2")
    following = built(tmp_path / "next.so", "-DNEXT").read_bytes()
    older = caller(emulated.cudart, nccl, calls=23)
    seen.wait_attached(nccl)
    older.call()
    assert total(seen, older.pid) == 23
    (before,) = [one for one in listed(seen) if one.path == str(nccl)]
    places = set(before.probes)
    nccl.write_bytes(following)  # the same inode: cp does so, unlike mv, pip and dpkg
    newer = caller(emulated.cudart, nccl, calls=29)
    users = {older.pid, newer.pid}

    def shared() -> list[Library]:
        on = [one for one in listed(seen) if one.path == str(nccl) and one.state == "on"]
        return [one for one in on if {user.pid for user in one.users} == users]

    (library,) = seen.until(lambda _: shared(), 20.0)
    assert len(library.probes) == len(places)
    assert not places & set(library.probes)
    newer.call()
    assert total(seen, newer.pid) == 29
    os.truncate(nccl, 0)
    seen.until(lambda _: all(one.state != "on" for one in listed(seen) if one.path == str(nccl)), 20.0)


def test_library_loaded_later(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A process that loads the library long after its start is looked at again."""
    cudart, nccl = copies(emulated, tmp_path)
    script = (
        "import sys, ctypes\nprint('up', flush=True)\nsys.stdin.readline()\n"
        f"ctypes.CDLL({str(cudart)!r}, ctypes.RTLD_GLOBAL); ctypes.CDLL({str(nccl)!r})\n"
        "print('in', flush=True)\nsys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(["/usr/bin/python3", "-I", "-c", script], **pipes) as late:  # type: ignore[call-overload]
        assert late.stdout.readline() == "up\n"
        for _ in range(4):
            seen.read()
        assert not any(library.path == str(nccl) for library in listed(seen))
        late.stdin.write("\n")
        late.stdin.flush()
        assert late.stdout.readline() == "in\n"
        seen.wait_attached(nccl)
        late.kill()


def test_aliases_carry_one_probe(seen: Any, caller: Any, emulated: Libraries) -> None:
    """Names at one address of a library carry one probe between them."""
    caller(emulated.cudart, emulated.nccl)
    seen.wait_attached(emulated.nccl)
    (library,) = [one for one in listed(seen) if one.path == str(emulated.nccl)]
    assert len(library.probes) == len(set(library.probes)) >= 20


@pytest.fixture
def layers(emulated: Libraries, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two overlay mounts that share their lower layer, as two containers of one image do."""
    copies(emulated, tmp_path / "lower")
    mounts = []
    for name in ("a", "b"):
        upper, work, mount = (tmp_path / f"{part}-{name}" for part in ("upper", "work", "mount"))
        for folder in (upper, work, mount):
            folder.mkdir()
        options = f"lowerdir={tmp_path / 'lower'},upperdir={upper},workdir={work}"
        made = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(mount)], check=False)
        if made.returncode:
            pytest.skip("overlay mounts are not allowed here")
        mounts.append(mount)
    yield mounts[0], mounts[1]
    for mount in mounts:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def test_shared_overlay_layer_counts_once(seen: Any, caller: Any, layers: tuple[Path, Path]) -> None:
    """Two containers that share a layer show two devices for one file: each of their calls counts once."""
    one, two = (caller(folder / "libcudart.so.12", folder / "libnccl.so.2", calls=19) for folder in layers)

    def shared(library: Library) -> bool:
        own = {process.pid for process in library.users} == {one.pid, two.pid}
        return own and "nccl" in library.path and library.state == "on"

    seen.until(lambda _: any(map(shared, listed(seen))))
    one.call()
    two.call()
    assert (total(seen, one.pid), total(seen, two.pid)) == (19, 19)


def test_own_mount_namespace(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A library that exists only in the process's own mount namespace is opened through the process."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    script = f'mount -t tmpfs tmpfs {hidden} && cp {emulated.cudart} {emulated.nccl} {hidden}/ && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", script, "sh"]
    process = caller(hidden / "libcudart.so.12", hidden / "libnccl.so.2", calls=23, prefix=prefix)
    assert not (hidden / "libnccl.so.2").exists()
    # From another root the kernel may show the path from the mount on: the process tells which library is meant.
    seen.until(
        lambda _: any(
            library.name == "libnccl.so.2"
            and library.state == "on"
            and process.pid in {user.pid for user in library.users}
            for library in listed(seen)
        )
    )
    process.call()
    assert total(seen, process.pid) == 23


def test_stripped_library_is_blocked_and_says_why(seen: Any, emulated: Libraries, tmp_path: Path) -> None:
    """A library by that name without the functions is listed as blocked with its reason."""
    empty = tmp_path / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-o", str(empty), "-x", "c", "/dev/null"], check=True)
    script = f"import ctypes, time; ctypes.CDLL({str(empty)!r}); time.sleep(60)"
    with subprocess.Popen(["/usr/bin/python3", "-I", "-c", script]) as process:
        row = seen.until(
            lambda rows: [
                row for row in rows.get("probe", ()) if row["path"] == str(empty) and row["state"] == "blocked"
            ]
        )
        process.kill()
    assert "stripped" in row[0]["reason"]


def test_probes_go_with_the_last_user(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """When the last process has ended the probes come off, so that the file can be freed; a new one gets new probes."""
    cudart, nccl = copies(emulated, tmp_path)
    process = caller(cudart, nccl)
    seen.wait_attached(nccl)
    process.close()
    seen.until(lambda rows: any(r["path"] == str(nccl) and r["state"] == "gone" for r in rows.get("probe", ())))
    again = caller(cudart, nccl, calls=29)
    seen.wait_attached(nccl)
    again.call()
    assert total(seen, again.pid) == 29


def test_no_compiler_stays(seen: Any) -> None:
    """The process that holds the probes never maps the BPF compiler."""
    assert seen.context.kernel is not None
    maps = Path(f"/proc/{os.getpid()}/maps").read_text()
    assert "libbcc" not in maps
    assert "libclang" not in maps


class SwappedFinder:
    """Answers for every file with another file's path: what a process can bring about between two looks."""

    busy = False

    def __init__(self, wanted: list[str]) -> None:
        self.asked: list[object] = []

    def has_room(self, owner: Owner) -> bool:
        """Always."""
        return True

    def ask(self, key: object, paths: tuple[str, ...], owner: Owner) -> None:
        """Remember."""
        self.asked.append(key)

    def poll(self) -> list[LookupResult]:
        """The answers, about a file that is not the one at that path any more."""
        asked, self.asked = self.asked, []
        return [
            LookupResult(key, "8:1:2:3:4", key[1], "/bin/true", {"ncclAllReduce": 64})  # type: ignore[index]
            for key in asked
        ]

    def close(self) -> None:
        """Nothing is held."""


def test_another_file_in_its_place_gets_no_probe(monkeypatch: pytest.MonkeyPatch, probes_allowed: None) -> None:
    """The file is looked at again before the first probe: what took its place in the meantime stays untouched."""
    monkeypatch.setattr("agent.probes.attachments.SymbolLookup", SwappedFinder)
    attached: list[object] = []
    monkeypatch.setattr("agent.probes.attachments.attach", lambda *place: attached.append(place))
    attachments = Attachments({"ncclAllReduce": -1}, Processes())
    attachments.update()
    assert attached == []
    assert {library.reason for library in attachments.libraries.values()} == {
        "its process put another file in its place"
    }
    attachments.close()


def test_a_layout_that_cannot_be_read_costs_only_the_layout(
    seen: Any, caller: Any, emulated: Libraries, tmp_path: Path
) -> None:
    """Debug information that makes the reader fail leaves the probes, and later processes are counted too."""
    cudart, nccl = copies(emulated, tmp_path)
    broken = tmp_path / "abbreviations"
    broken.write_bytes(b"\xff" * 64)
    subprocess.run(["objcopy", f"--update-section=.debug_abbrev={broken}", str(nccl)], check=True)
    first = caller(cudart, nccl, calls=31)
    seen.wait_attached(nccl)
    seen.until(lambda _: not seen.context.attachments.busy)
    second = caller(cudart, nccl, calls=37)
    seen.until(lambda _: any(len(library.users) == 2 and library.path == str(nccl) for library in listed(seen)))
    first.call()
    second.call()
    assert (total(seen, first.pid), total(seen, second.pid)) == (31, 37)


def test_a_number_that_another_file_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of no interest that is deleted leaves its inode to a new one, such as an upgraded NCCL, which is seen."""
    asked: list[object] = []

    class Finder(SwappedFinder):
        """Finds nothing in any file."""

        def ask(self, key: object, paths: tuple[str, ...], owner: Owner) -> None:
            super().ask(key, paths, owner)
            asked.append(paths[1])

        def poll(self) -> list[LookupResult]:
            return [LookupResult(answer.key, "8:1:2:3:4", answer.inode, "/x", {}) for answer in super().poll()]

    monkeypatch.setattr("agent.probes.attachments.SymbolLookup", Finder)
    monkeypatch.setattr("agent.probes.attachments.attach", lambda *place: 1)
    processes, me = Processes(), Processes().find(os.getpid())
    assert me is not None
    attachments = Attachments({"ncclAllReduce": -1}, processes)
    for name in ("libcudnn.so.9", "libcudnn.so.9", "libnccl.so.2"):
        files = [MappedFile(me, "8:3", 71, f"/opt/{name}", "1000-2000")]
        monkeypatch.setattr(processes, "changed", lambda files=files: [(me, files)])
        attachments.update()
    assert [os.path.basename(str(path)) for path in asked] == ["libcudnn.so.9", "libnccl.so.2"]
    assert [library.name for library in attachments.libraries.values()] == ["libnccl.so.2"]
    attachments.close()


def test_two_nccls_in_one_process(seen: Any, caller: Any, emulated: Libraries, tmp_path: Path) -> None:
    """Two copies of NCCL that one process maps, such as one within PyTorch, each carry probes; no call counts twice."""
    cudart, nccl = copies(emulated, tmp_path / "one")
    _, second = copies(emulated, tmp_path / "two")
    second = second.rename(tmp_path / "two/libtorch_cuda.so")
    process = caller(cudart, nccl, second, calls=19)
    other = caller(cudart, second, calls=29)
    seen.wait_attached(nccl)
    seen.wait_attached(second)
    process.call()
    other.call()
    assert (total(seen, process.pid), total(seen, other.pid)) == (19, 29)
