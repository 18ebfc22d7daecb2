"""The file that `peerwatch train-minder` writes: metrics in the order in which Minder asks them, and their nets."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from detector.methods.baselines.autoencoder import Autoencoder

WINDOW, HIDDEN = 8, 4
"""Samples in a window and the width of the narrow layer, as in the paper (its hidden size)."""
_FORMAT = 1
_LARGEST = 16 << 20
_NETS = ("encode", "bias", "decode", "after")


class ModelError(ValueError):
    """The model cannot be read or does not fit; one line with the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class MinderModel:
    """What training leaves behind."""

    metrics: tuple[str, ...]
    """`table.metric`, the most telling first."""
    each: Autoencoder
    """One net a metric, in the order of `metrics`."""
    joint: Autoencoder
    """One net over the windows of all metrics, side by side in that order."""
    origin: dict[str, Any]
    """What it was trained on and how well it reconstructs, for people."""

    def save(self, path: Path) -> None:
        """Write it as an .npz archive of plain arrays. Raises OSError."""
        arrays = {f"{kind}_{name}": getattr(nets, name) for kind, nets in self._nets() for name in _NETS}
        bent = np.array([nets.bent for _, nets in self._nets()])
        with path.open("wb") as file:  # given a name, numpy would append its own ending
            np.savez_compressed(
                file,
                format=_FORMAT,
                metrics=np.array(self.metrics),
                origin=json.dumps(self.origin),
                bent=bent,
                **arrays,
            )

    def _nets(self) -> tuple[tuple[str, Autoencoder], tuple[str, Autoencoder]]:
        return ("each", self.each), ("joint", self.joint)


def load(path: Path) -> MinderModel:
    """Read a model; archives with pickled objects are refused unread. Raises ModelError."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST:
                raise ModelError(
                    f"{path} is larger unpacked than a model can be; write one with peerwatch train-minder"
                )
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
        return _checked(found)
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist; write it with peerwatch train-minder") from None
    except ModelError:
        raise
    except Exception as error:  # zipfile and numpy raise a dozen kinds on bytes that neither of them wrote
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path} is no model of peerwatch train-minder, or damaged: {why}") from error


def _checked(found: dict[str, Any]) -> MinderModel:
    """A model with shapes that fit together. Raises ValueError and KeyError."""
    if int(found["format"]) != _FORMAT:
        raise ValueError(f"its format is {int(found['format'])}, not {_FORMAT}")
    metrics = tuple(str(name) for name in found["metrics"].tolist())
    count, origin = len(metrics), json.loads(str(found["origin"]))
    each_bent, joint_bent = (bool(one) for one in found["bent"].tolist())
    each = _nets_of(found, "each", (count, WINDOW), each_bent)
    joint = _nets_of(found, "joint", (1, count * WINDOW), joint_bent)
    if not count or not isinstance(origin, dict):
        raise ValueError("it has no metrics or no origin")
    return MinderModel(metrics, each, joint, origin)


def _nets_of(found: dict[str, Any], kind: str, shape: tuple[int, int], bent: bool) -> Autoencoder:
    arrays = {name: np.asarray(found[f"{kind}_{name}"], np.float64) for name in _NETS}
    nets, inputs = shape
    hidden = arrays["bias"].shape[-1]
    wanted = {"encode": (nets, inputs, hidden), "bias": (nets, hidden)}
    wanted |= {"decode": (nets, hidden, inputs), "after": (nets, inputs)}
    for name, array in arrays.items():
        if array.shape != wanted[name] or not np.isfinite(array).all():
            raise ValueError(f"{kind}_{name} is not finite or has shape {array.shape}, not {wanted[name]}")
    return Autoencoder(**arrays, bent=bent)
