"""Makes agent/binaries/layouts.json again: reads NVIDIA's wheels, fetched one by one.

`python tools/nccl_layouts.py` (about 7 GB to fetch, 10 minutes); wheels are not kept. A build more is a line more here.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from agent.binaries.elf_worker import table  # noqa: E402 - found by the path above
from agent.binaries.struct_layouts import TABLE  # noqa: E402
from emulator.libraries.wheel import fetch  # noqa: E402

BUILDS = {
    "nvidia-nccl-cu11": "2.18.3 2.19.3 2.21.5",
    "nvidia-nccl-cu12": """2.18.1 2.18.3 2.19.3 2.20.5 2.21.5 2.22.3 2.23.4 2.24.3 2.25.1 2.26.2 2.26.5 2.27.3 2.27.5
        2.27.7 2.28.3 2.28.9 2.29.3 2.29.7 2.30.7 2.31.2 2.32.3""",
    "nvidia-nccl-cu13": "2.27.7 2.28.9 2.30.7 2.32.3",
}


def main() -> None:
    """Read every build; write the table when all are read."""
    found: dict[str, object] = {}
    for package, versions in BUILDS.items():
        for version in versions.split():
            with tempfile.TemporaryDirectory() as folder:
                library = Path(folder) / "libnccl.so.2"
                fetch(version, library, package)
                read = table([str(library)])
            if not read:
                raise SystemExit(f"{package} {version} has no debug information")
            found |= read
            print(package, version, *read, flush=True)
    TABLE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
