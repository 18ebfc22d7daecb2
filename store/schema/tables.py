"""The tables of a store: key columns, and whether peers are compared by them."""

from __future__ import annotations

from store.schema.metric import Table

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        Table("host", (), True, "one reading of the operating system"),
        Table("gpu", ("gpu",), True, "one reading of one GPU"),
        Table("rdma", ("port",), True, "one reading of one RDMA port", has_driver_columns=True),
        Table("nccl", ("gpu", "slot"), True, "one communicator of one process, over the last period", fast=True),
        Table("cuda", ("gpu",), True, "CUDA calls of one process, over the last period"),
        Table("process", ("gpu",), True, "what the processes of one GPU, and those that they started, waited for"),
        Table("startup", ("gpu",), False, "how a training process came up"),
        Table("start", ("gpu",), False, "how a training process came up: one row, once it runs"),
        Table("stack", ("gpu",), False, "where a process that hangs is"),
        Table("nvswitch", ("switch",), False, "one reading of one NVSwitch, by DCGM"),
        Table("profile", ("gpu",), False, "functions of one process in a window that all machines had together"),
        Table("ras", ("slot",), False, "what NCCL reports of a task that hangs, a communicator each"),
        Table("task", (), False, "which training task the machine works for, where a scheduler or a recording says so"),
        Table("job_log", ("job",), False, "what a job writes of itself: logs, TensorBoard files, checkpoints"),
        Table("card", ("gpu",), False, "which card each GPU is, on change and once a week"),
        Table("check", ("check",), False, "what an active check of a suspect found (`peerwatch check`)"),
        Table("job", ("gpu",), False, "which job of a scheduler a training process belongs to"),
        Table("event", ("source", "code"), False, "something discrete: an Xid, a process that left a communicator"),
        Table("verdict", ("task",), False, "what the detector concluded"),
        Table("source", ("source",), False, "the state of each source of the agent"),
        Table("probe", ("library",), False, "what the agent has attached to, and what is blocked and why"),
        Table("lease", (), False, "which of several detectors speaks, a row each term", replaced=True),
        Table("threshold", (), False, "how far the detector on this machine has learned its thresholds"),
        Table("delivery", ("sink",), False, "what each sink of alerts was sent, where detectors share the store"),
    )
}
UNJUDGED = ("verdict", "probe", "lease", "threshold", "delivery")
"""The tables that say nothing of a machine's work."""

HISTORY = ("card", "check", "event", "start", "verdict")
"""Tables of few rows from which a machine's history is read: the embedded store retains them longer than readings."""

ZOOM = "_zoom"
"""Ends the names of tables of readings that were taken many times a second, as the detector requested (zoom)."""
ZOOMED = ("host", "gpu", "rdma")
"""The tables of which there are such."""
TABLES |= {
    f"{name}{ZOOM}": Table(f"{name}{ZOOM}", TABLES[name].keys, False, f"{TABLES[name].help}, many times a second")
    for name in ZOOMED
}
