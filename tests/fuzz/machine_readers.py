"""Readers of the agent that look at jobs, ports and the answers of NCCL's status socket."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from agent.nccl.ras import worker as ras
from agent.nccl.ras.status import StatusError
from agent.process.container import before_start
from agent.process.job_logs.log_lines import read_line
from agent.process.job_logs.plain_files import Follower
from agent.process.job_logs.signals import Signals, name_of
from agent.process.job_logs.tensorboard import EventReader, masked_crc
from agent.process.jobs.cgroup import parse_cgroup
from agent.process.jobs.job import MOST, MOST_LABELS, VARIABLES, job_of, user_name
from agent.process.jobs.kubelet import Kubelet
from agent.rdma.discovery import find, interfaces
from agent.rdma.sysfs_counters import PortFiles
from agent.sources.startup import parse_io
from tests.fuzz.reader import Reader, text

_UID, _CONTAINER = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", "ab" * 32
_SLURM = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n"
_POD = f"0::/kubepods.slice/kubepods-pod{_UID.replace('-', '_')}.slice/cri-containerd-{_CONTAINER}.scope\n"
_WORDS = "SLURM_JOB_ID=4711\0SLURM_JOB_NAME=pretrain\0POD_NAME=llm-7\0HOSTNAME=m31\0"
_LABELS = 'app="llm"\njob-name="pretrain-5"\n'
_USERS = "root:x:0:0:root:/root:/bin/bash\ntrainer:x:1003:1003::/home/trainer:/bin/sh\n"


def _job(data: bytes, folder: Path, chance: Random) -> None:
    """Cgroup, environment, /etc/passwd and the kubelet's files, each of the same hostile bytes."""
    said = data.decode(errors="replace")
    version = folder / f"var/lib/kubelet/pods/{_UID}/volumes/kubernetes.io~projected/v/..2024"
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc/passwd").write_bytes(data)
    if not version.is_dir():
        version.mkdir(parents=True)
        os.symlink("..2024", version.parent / "..data")
    (version / "labels").write_bytes(data)
    user_name.cache_clear()
    variables = {name: chance.choice((said, said[:9], "4711")) for name in VARIABLES if chance.random() < 0.7}
    for cgroup in (said, _SLURM, _POD, _POD + said):
        row = job_of(parse_cgroup(cgroup), variables, user_name(1003, folder), Kubelet(folder))
        assert all(len(value) <= (MOST_LABELS if name == "labels" else MOST) for name, value in row.items())
        assert all(value.isprintable() for value in row.values() if value.isascii())


def _container(data: bytes, folder: Path, chance: Random) -> None:
    """A container's process with hostile files in /proc, and a cgroup that is there."""
    (folder / "sys/fs/cgroup" / _POD.strip().split(":")[2].lstrip("/")).mkdir(parents=True, exist_ok=True)
    proc = folder / "proc"
    for pid in (7, 8):
        (proc / str(pid)).mkdir(parents=True, exist_ok=True)
        (proc / str(pid) / "cgroup").write_bytes(chance.choice((data, _POD.encode())))
        (proc / str(pid) / "stat").write_bytes(data)
    before_start(proc, folder, 7, 1.7e9)


def _io(data: bytes, *_: object) -> None:
    parse_io(data)


def _log_lines(data: bytes, folder: Path, chance: Random) -> None:
    """A log that grows, shrinks and is replaced."""
    (folder / "train.log").write_bytes(data[: chance.randrange(len(data) + 1)])
    follower, signals = Follower(str(folder / "*.log"), True), Signals(flops=0.5)
    for at in range(4):
        found, _place = follower.read()
        for line in found.decode(errors="replace").splitlines():
            signals.feed(read_line(line), 1.7e9 + at)
            name_of(line)
        signals.row()
        (folder / "train.log").write_bytes(data[chance.randrange(len(data) + 1) :])


def _event(tag: bytes, number: float) -> bytes:
    """A record of a TensorBoard file with one scalar."""
    value = b"\x0a" + bytes([len(tag)]) + tag + b"\x15" + struct.pack("<f", number)
    summary = b"\x0a" + bytes([len(value)]) + value
    event = b"\x09" + struct.pack("<d", 1.7e9) + b"\x10\x29\x2a" + bytes([len(summary)]) + summary
    return _record(event)


def _record(event: bytes) -> bytes:
    head = struct.pack("<Q", len(event))
    return head + struct.pack("<I", masked_crc(head)) + event + struct.pack("<I", masked_crc(event))


def _tensorboard(data: bytes, _: Path, chance: Random) -> None:
    """Hostile bytes as a file, in pieces, and as the content of a record with right checksums."""
    cut = chance.randrange(len(data) + 1)
    for pieces in ((data[:cut], data[cut:]), (_record(data[: 1 << 15]),)):
        reader, signals = EventReader(), Signals()
        with suppress(ValueError):
            for piece in pieces:
                for one in reader.feed(piece):
                    signals.feed({"step": float(one.step), name_of(one.tag) or "loss": one.value}, one.time)
        signals.row()


def _status_socket(data: bytes, _: Path, chance: Random) -> None:
    """Something that listens where NCCL would, and answers these bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answers = (b"SERVER PROTOCOL 2\n", b"OK\n", b"OK\n") if chance.random() < 0.8 else (data, data, data)

        def serve() -> None:
            connection, _from = server.accept()
            with connection, suppress(OSError):  # the asker may hang up first
                for answer in answers:
                    connection.recv(200)
                    connection.sendall(answer)
                connection.recv(200)
                connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            ras._talk(server.getsockname()[1], time.monotonic() + 5)
        finally:
            thread.join()


_PORT = "4: ACTIVE\0" + "400 Gb/sec (4X NDR)\0" + "1234567\0" + "N/A (no PMA)\0" + "InfiniBand\0"
_FILES = ("state", "rate", "counters/port_xmit_data", "counters/symbol_error", "link_layer")


def _port(data: bytes, folder: Path, chance: Random) -> None:
    """A port with files that a driver writes as it likes."""
    port = folder / "sys/class/infiniband/mlx5_0/ports/1"
    said = data.split(b"\0")
    for file in (*_FILES, "hw_counters/out_of_sequence", "gid_attrs/ndevs/0"):
        (port / file).parent.mkdir(parents=True, exist_ok=True)
        (port / file).write_bytes(chance.choice(said))
    for place in find(folder):
        interfaces(place)
        with closing(PortFiles(place, 10**18)) as files:
            for at in range(3):
                files.adopt(())
                files.read(10**18 + at)
                files.rest(10**18 + at)


MACHINE_READERS = (
    Reader("job", text(_SLURM + _POD, _WORDS, _LABELS, _USERS), _job, below=("labels",)),
    Reader("container", text(_POD, "7 (python) S 8 7 7 0 -1 0 0 0 0 0 9 9 0 0 20 0 1 0 31337 0 0\n"), _container),
    Reader("input and output", text("rchar: 31\nwchar: 7\nread_bytes: 4096\n"), _io, (ValueError,)),
    Reader(
        "job log", text("step 31 | loss: 2.5 | grad_norm 0.7 | step_time: 0.9\n" * 9), _log_lines, below=("train.log",)
    ),
    Reader("tensorboard", lambda folder: [_event(b"loss", 2.5) + _event(b"grad_norm", 0.7)], _tensorboard),
    Reader("status socket", text('{"nccl_version": "2.29.3"}'), _status_socket, (StatusError, OSError)),
    Reader("rdma port", text(_PORT), _port),
)
