"""Autoencoders of one hidden layer, one for each metric, as arrays: judging needs numpy alone.

They stand in for Minder's LSTM variational autoencoders: a narrow layer passes on what windows have in common and
drops what is noise. What they lack is memory beyond the window and a distribution over the hidden values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detector.stats.arrays import Floats


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """Weights of several nets with equal shapes."""

    encode: Floats
    """[net, input, hidden]"""
    bias: Floats
    """[net, hidden]"""
    decode: Floats
    """[net, hidden, input]"""
    after: Floats
    """[net, input]"""
    bent: bool
    """Whether the hidden values pass a hyperbolic tangent; otherwise the nets are linear."""

    def denoised(self, windows: Floats) -> Floats:
        """The windows [net, machine, input] as the nets give them back."""
        hidden = windows @ self.encode + self.bias[:, None]
        return (np.tanh(hidden) if self.bent else hidden) @ self.decode + self.after[:, None]

    def of(self, nets: list[int]) -> Autoencoder:
        """Some of the nets, in this order."""
        return Autoencoder(self.encode[nets], self.bias[nets], self.decode[nets], self.after[nets], self.bent)


def components(samples: Floats, hidden: int) -> Autoencoder:
    """Linear nets by principal components, from windows [net, sample, input]."""
    middle = samples.mean(1)
    centred = samples - middle[:, None]
    _, axes = np.linalg.eigh(centred.transpose(0, 2, 1) @ centred)
    encode = axes[:, :, ::-1][:, :, :hidden]
    return Autoencoder(encode, -np.einsum("ni,nih->nh", middle, encode), encode.transpose(0, 2, 1), middle, False)
