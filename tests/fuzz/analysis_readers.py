"""Readers of files that a person names: topology, logs of operations, traces, healthy runs, outputs of checks."""

from __future__ import annotations

import gzip
import json
import pickle
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from analysis.behaviour.baseline import BaselineError, load
from analysis.behaviour.measures import Behaviour
from analysis.checks.child import Ended
from analysis.checks.tools import CHECKS
from analysis.topology.files import read_topology
from analysis.traces.bounded import TraceError
from analysis.traces.reading import read_logs
from analysis.whatif.meta_file import read_meta
from analysis.whatif.trace_file import read_trace
from detector.methods.baselines import minder_model
from store.recording import RecordingError
from store.transfer.public_datasets import KINDS, read
from tests.analysis.topology.test_files import BLOCKS, CSV, SLURM, TOML, TOPO, lldp, lldp0
from tests.analysis.traces.test_readers import inspector, recorder, trace
from tests.analysis.whatif.jobs import Job
from tests.fuzz.reader import Reader, packed, text

_LINKS = '[[leaf]]\nname = "leaf1"\nmachines = ["m01"]\n'
_META = "trial_name: pretrain\nworld_size: 64\ndp_size: 8\npp_size: 2\ntp_size: 4\n"
_ABOUT = {"Collective name": "allreduce", "In msg nelems": 9, "dtype": "Float", "Process Group Ranks": "[0, 5]"}
_KERNEL = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ts": 160, "dur": 25}
_LAUNCH = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunch", "ts": 140, "dur": 2, "args": {"correlation": 8}}
_STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 150}


def _topology(data: bytes, folder: Path, chance: Random) -> None:
    (folder / "m01.json").write_bytes(data)
    (folder / "known.toml").write_text(_LINKS)
    found = read_topology([folder / name for name in ("m01.json", "known.toml")[: chance.choice((1, 2))]])
    for machine in found.places:
        found.rail(machine, "0")


def _operation_logs(data: bytes, folder: Path, _: Random) -> None:
    (folder / "log").write_bytes(data)
    read_logs([folder / "log"])


def _log_seeds(folder: Path) -> Sequence[bytes]:
    kineto = packed(trace(_STEP, _LAUNCH, {**_KERNEL, "args": {"correlation": 8, "stream": 20, **_ABOUT}})).encode()
    return [
        b"".join(packed(inspector(rank, 5, 0.25)).encode() + b"\n" for rank in range(2)),
        packed(recorder(4)).encode(),
        pickle.dumps(recorder(6), protocol=2),
        kineto,
        gzip.compress(kineto),
    ]


def _trace_seeds(folder: Path) -> Sequence[bytes]:
    file = Job(dp=2, pp=2, steps=2).write(folder / "whole.parquet")
    csv.write_csv(parquet.read_table(file), folder / "whole.csv")
    return [file.read_bytes(), (folder / "whole.csv").read_bytes()]


def _trace(data: bytes, folder: Path, _: Random) -> None:
    (folder / "trace").write_bytes(data)
    read_trace(folder / "trace")


def _meta(data: bytes, folder: Path, _: Random) -> None:
    (folder / "meta.yaml").write_bytes(data)
    read_meta(folder / "meta.yaml")


_HEALTHY = {
    "version": 1,
    "program": "p",
    "size": 4,
    "measures": {"iteration_seconds": {"quantiles": [0.5] * 99, "spread": 0.1}},
}


def _healthy(data: bytes, folder: Path, _: Random) -> None:
    (folder / "healthy.json").write_bytes(data)
    load(folder / "healthy.json", Behaviour(4, "p"))


_DIAGNOSIS = {"DCGM GPU Diagnostic": {"tests": [{"name": "Memory", "results": [{"gpu_id": "3", "status": "Fail"}]}]}}
_BURN_IN = {"tflops": {"0": 411.5, "1": 399.0}, "wrong": {"0": 0, "1": 2}}
_BANDWIDTH = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 341.7\n"
_RDMA = " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n 65536 5000 391.2 389.7 0.743\n"


def _checks(data: bytes, *_: object) -> None:
    for check in CHECKS.values():
        for code in (0, 1, None):
            check.read(Ended(code, data.decode(errors="replace"), 0.7))


def _dataset_seeds(folder: Path) -> Sequence[bytes]:
    values, label = np.arange(42.0).reshape(2, 7, 3), np.zeros((2, 7), np.int64)
    np.savez(folder / "asd.npz", fit=values, test=values, label=label)
    smd = {f"{name}/{part}": one[0] for name in ("1-1", "1-2") for part, one in (("test", values), ("label", label))}
    np.savez_compressed(folder / "smd.npz", **smd)
    power = pa.table(
        {
            "run": ["r1"] * 6,
            "side": ["a"] * 6,
            "node": [0, 1, 2] * 2,
            "sensor_group": [0, 1, 2] * 2,
            "t_ms": [0, 0, 0, 500, 500, 500],
            "watts": [411.5, 399.0, 401.25] * 2,
        }
    )
    parquet.write_table(power, folder / "power.parquet")
    return [(folder / name).read_bytes() for name in ("asd.npz", "smd.npz", "power.parquet")]


def _dataset(data: bytes, folder: Path, _: Random) -> None:
    (folder / "set").write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are none
        for kind in KINDS:
            with suppress(RecordingError):
                list(read(kind, folder / "set"))


def _model_seeds(folder: Path) -> Sequence[bytes]:
    generator = np.random.default_rng(5)
    each = minder_model.Autoencoder(
        generator.normal(size=(2, minder_model.WINDOW, 3)),
        generator.normal(size=(2, 3)),
        generator.normal(size=(2, 3, minder_model.WINDOW)),
        generator.normal(size=(2, minder_model.WINDOW)),
        True,
    )
    wide = 2 * minder_model.WINDOW
    joint = minder_model.Autoencoder(
        generator.normal(size=(1, wide, 4)),
        generator.normal(size=(1, 4)),
        generator.normal(size=(1, 4, wide)),
        generator.normal(size=(1, wide)),
        False,
    )
    minder_model.MinderModel(("gpu.power_watts", "gpu.busy_ratio"), each, joint, {"seed": 5}).save(folder / "m.npz")
    return [(folder / "m.npz").read_bytes()]


def _model(data: bytes, folder: Path, _: Random) -> None:
    (folder / "m.npz").write_bytes(data)
    minder_model.load(folder / "m.npz")


_TOPOLOGIES = text(TOML, CSV, SLURM, BLOCKS, TOPO, json.dumps(lldp("leaf1", "leaf2")), json.dumps(lldp0("leaf3")))

ANALYSIS_READERS = (
    Reader("topology", _TOPOLOGIES, _topology, (ValueError,)),
    Reader("operation logs", _log_seeds, _operation_logs, (TraceError,)),
    Reader("operation trace", _trace_seeds, _trace, (ValueError,)),
    Reader("job description", text(_META), _meta, (ValueError,)),
    Reader("healthy run", text(packed(_HEALTHY)), _healthy, (BaselineError,)),
    Reader("checks", text(packed(_DIAGNOSIS), packed(_BURN_IN), _BANDWIDTH, _RDMA), _checks),
    Reader("public data", _dataset_seeds, _dataset),
    Reader("minder model", _model_seeds, _model, (minder_model.ModelError,)),
)
