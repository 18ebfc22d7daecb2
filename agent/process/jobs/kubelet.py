"""Names and labels of pods from the kubelet's files on the machine: no API server is asked.

The kubelet links each container's log as /var/log/containers/POD_NAMESPACE_CONTAINER-ID.log and makes a folder
/var/log/pods/NAMESPACE_POD_UID. Labels are there only if the pod mounts them (downward API), below
/var/lib/kubelet/pods/UID/volumes. https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path

ENTRIES = 4096
"""Files of a folder that are looked at: a machine runs some hundred pods at most."""
LABELS, LABELS_BYTES = 32, 1 << 16
_LOG = re.compile(r"([a-z0-9.-]{1,253})_([a-z0-9-]{1,63})_([a-z0-9-]{1,63})-([0-9a-f]{64})\.log")
_POD = re.compile(r"([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})_([0-9a-f-]{32,36})")
_LABEL = re.compile(r'([A-Za-z0-9./_-]{1,317})="([A-Za-z0-9._-]{0,63})"')  # the API server accepts no other
_VERSION = re.compile(r"\.\.[0-9][\w.]{1,62}")
_KINDS = ("kubernetes.io~downward-api", "kubernetes.io~projected")


class Kubelet:
    """The files below `root`, the machine's own root folder as the agent sees it."""

    def __init__(self, root: Path) -> None:
        self._logs, self._pods = root / "var/log", root / "var/lib/kubelet/pods"

    def names(self, pod_uid: str, container_id: str) -> dict[str, str]:
        """Namespace, pod and container, as far as the files tell."""
        for name in _listed(self._logs / "containers"):
            if (found := _LOG.fullmatch(name)) and found[4] == container_id:
                return {"namespace": found[2], "pod": found[1], "container": found[3]}
        for name in _listed(self._logs / "pods"):
            if (found := _POD.fullmatch(name)) and found[3] in (pod_uid, pod_uid.replace("-", "")):
                return {"namespace": found[1], "pod": found[2]}
        return {}

    def labels(self, pod_uid: str) -> dict[str, str]:
        """The pod's labels, in order of their keys; none where no volume shows them."""
        for kind in _KINDS:
            folder = self._pods / pod_uid / "volumes" / kind
            for volume in _listed(folder)[:16]:
                with suppress(OSError):  # a volume of another use, or one that is gone
                    return parse_labels(_read_labels(folder / volume))
        return {}


def parse_labels(text: str) -> dict[str, str]:
    """Lines of the form key="value", in order of the keys; what no label can be is left out."""
    found = filter(None, map(_LABEL.fullmatch, text.splitlines()))
    return dict(islice(sorted((match[1], match[2]) for match in found), LABELS))


def _listed(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, ENTRIES))
    except OSError:  # no kubelet here, or not for us to read
        return []


def _read_labels(volume: Path) -> str:
    """The file `labels` of a volume, behind the kubelet's link `..data` and no other. Raises OSError.

    A pod may be able to write there: nothing but a plain file right below the volume is opened.
    """
    version = os.readlink(volume / "..data")
    if not _VERSION.fullmatch(version):
        raise OSError(f"{volume} has no version of its own")
    folder = os.open(volume / version, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open("labels", flags, dir_fd=folder)
        with open(file, "rb", buffering=0) as opened:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError("the labels are no plain file")
            return (opened.read(LABELS_BYTES) or b"").decode(errors="replace")
    finally:
        os.close(folder)
