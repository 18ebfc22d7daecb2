"""Burn-in of every GPU by matrix products with torch: `python -m analysis.checks.gemm` prints one JSON line.

All GPUs work at once, as in training. The same product is computed again and again: on a sound GPU every result has
the same bits, so a result that differs is silent data corruption.
"""

from __future__ import annotations

import json
import time
from typing import Any

_SIZE, _SECONDS, _BATCH = 8192, 20.0, 10


def main() -> None:
    """Print `{"tflops": {gpu: speed}, "wrong": {gpu: products that differ}}`."""
    import torch

    matrices = [_matrices(torch, gpu) for gpu in range(torch.cuda.device_count())]
    if not matrices:
        raise SystemExit("torch sees no GPU")
    usual = [left @ right for left, right in matrices]
    wrong, done = [0] * len(matrices), 0
    begin = time.monotonic()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in matrices]
    busy = [0.0] * len(matrices)
    while time.monotonic() - begin < _SECONDS:
        last = []
        for gpu, (left, right) in enumerate(matrices):
            with torch.cuda.device(gpu):
                events[gpu][0].record()
                product = left
                for _ in range(_BATCH):
                    product = left @ right
                events[gpu][1].record()
            last.append(product)
        for gpu, product in enumerate(last):
            torch.cuda.synchronize(gpu)
            busy[gpu] += events[gpu][0].elapsed_time(events[gpu][1]) / 1e3
            wrong[gpu] += not torch.equal(product, usual[gpu])
        done += _BATCH
    speed = [2 * _SIZE**3 * done / seconds / 1e12 for seconds in busy]
    print(json.dumps({"tflops": dict(enumerate(speed)), "wrong": dict(enumerate(wrong))}))


def _matrices(torch: Any, gpu: int) -> tuple[Any, Any]:
    dice = torch.Generator(device=f"cuda:{gpu}").manual_seed(7)
    with torch.cuda.device(gpu):
        shape = (_SIZE, _SIZE)
        left, right = (torch.randn(shape, generator=dice, device=gpu, dtype=torch.bfloat16) for _ in range(2))
    return left, right


if __name__ == "__main__":
    main()
