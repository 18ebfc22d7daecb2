"""Builds the Debian packages, without network: `make packages`, or

python tools/packages.py WHEELS OUT      WHEELS holds the files of requirements.lock, OUT gets the .deb files

peerwatch-common has the program, the Python packages that all need, the command and the configuration; peerwatch-agent
and peerwatch-detector add to the same folder what each needs alone, and their units. The version is pyproject.toml's.
"""

from __future__ import annotations

import compileall
import gzip
import hashlib
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "usr/lib/peerwatch"
SITE = f"{PREFIX}/lib/python3.11/site-packages"
SHARED = "python3 (>= 3.11), python3 (<< 3.12)"
LAUNCHER = "#!/usr/lib/peerwatch/bin/python -I\nfrom cli.main import main\n\nmain()\n"
MAINTAINER = "Peerwatch contributors <peerwatch@localhost.localdomain>"
OVERRIDES = """# There is no mailbox.
bogus-mail-host
bogus-mail-host-in-debian-changelog
# The Python packages are their authors' wheels, checked by hash and not built again.
unstripped-binary-or-object
embedded-library
library-not-linked-against-libc
shared-library-lacks-prerequisites
custom-library-search-path
package-contains-timestamped-gzip
# They are byte-compiled here, since the services cannot write beside them.
package-installs-python-pycache-dir
# Services are stopped, and those that run started again, as debhelper does it.
maintainer-script-calls-systemctl
# The command runs on the interpreter of its own virtual environment.
unusual-interpreter
"""


@dataclass(frozen=True)
class Package:
    """One .deb: its section of the lock, dependencies, units, and the state that its purge removes."""

    section: str
    depends: str
    summary: str
    text: str
    units: tuple[str, ...] = ()
    state: str = ""
    suggests: str = ""

    @property
    def name(self) -> str:
        """Its name in Debian."""
        return f"peerwatch-{self.section}"


PACKAGES = (
    Package(
        "common",
        f"{SHARED}, adduser, libc6 (>= 2.34), libstdc++6",
        "GPU training fleets watched from outside: program and configuration",
        "The command peerwatch, its Python packages and its configuration.",
        suggests="gcc, libc6-dev",
    ),
    Package(
        "agent",
        "peerwatch-common (= {version}), python3-bpfcc, libc6 (>= 2.34)",
        "GPU training fleets watched from outside: agent",
        "Reads a machine and the training processes on it: eBPF, NVML, RDMA, host.",
        ("peerwatch-agent.service",),
        "/var/cache/peerwatch /var/lib/peerwatch/spool",
    ),
    Package(
        "detector",
        "peerwatch-common (= {version}), libc6 (>= 2.34), libstdc++6",
        "GPU training fleets watched from outside: detector and writer",
        "Compares the machines of a fleet and names the one that differs.",
        ("peerwatch-detector.service", "peerwatch-writer.service"),
        "/var/lib/peerwatch/detector.npz* /var/lib/peerwatch/peerwatch.alerts /var/lib/peerwatch/alerts",
    ),
)


def version() -> str:
    """The version in pyproject.toml; ~unreleased, which sorts before it, without release notes in CHANGELOG.md."""
    (found,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    released = f"## [{found}]" in (ROOT / "CHANGELOG.md").read_text()
    return str(found) if released else f"{found}~unreleased"


def locked(section: str, folder: Path) -> Path:
    """One section of requirements.lock, as a file of its own."""
    text = (ROOT / "requirements.lock").read_text().split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    file = folder / f"{section}.txt"
    file.write_text(text)
    return file


class Builder:
    """Builds in one temporary folder; what pip installs comes from the folder of wheels, checked by its hash."""

    def __init__(self, wheels: Path, folder: Path) -> None:
        self.wheels, self.folder, self.version = wheels.resolve(), folder, version()
        subprocess.run([sys.executable, "-m", "venv", folder / "env"], check=True)
        self._pip("install", "--require-hashes", "-r", str(locked("build", folder)))
        tree = folder / "tree"
        tree.mkdir()
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        for file in (file for file in ROOT.glob("*/__init__.py") if file.parent.name != "tests"):
            shutil.copytree(file.parent, tree / file.parent.name, ignore=shutil.ignore_patterns("__pycache__"))
        self._pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(tree))
        (self.program,) = folder.glob("peerwatch-*.whl")

    def _pip(self, command: str, *words: str) -> None:
        """Run pip without an index, and without the settings of this machine."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        order = [self.folder / "env/bin/python", "-m", "pip", "--isolated", "--disable-pip-version-check", command]
        order += ["--quiet", "--no-index", "--find-links", self.wheels, *words]
        if subprocess.run(order, env=env, check=False).returncode:
            raise SystemExit(f"packages: {self.wheels} lacks what requirements.lock names: make wheels")

    def build(self, package: Package, out: Path) -> Path:
        """The .deb of a package."""
        root = self.folder / package.name
        self._install(root, "--require-hashes", "-r", str(locked(package.section, self.folder)))
        if package.section == "common":
            self._install(root, str(self.program))
            self._manual(root)
            furnish(root)
        for needless in [
            *root.glob(f"{SITE}/*/**/tests"),
            *root.glob(f"{SITE}/*/test"),
            root / SITE / "pyarrow/include",
        ]:
            shutil.rmtree(needless, ignore_errors=True)  # 70 MB that nothing imports
        compileall.compile_dir(
            root / PREFIX,
            stripdir=str(root),
            prependdir="/",
            quiet=1,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
        finish(root, package, self.version)
        file = out / f"{package.name}_{self.version}_amd64.deb"
        subprocess.run(["/usr/bin/dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", root, file], check=True)
        return file

    def _manual(self, root: Path) -> None:
        man = root / "usr/share/man"
        env = {"PYTHONPATH": str(root / SITE), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, "-m", "cli.manual", man], env=env, cwd=root, check=True)
        for page in [*man.rglob("*.[15]")]:
            _pack(page)

    def _install(self, root: Path, *words: str) -> None:
        self._pip("install", "--no-deps", "--no-compile", "--prefix", str(root / PREFIX), *words)
        programs = root / PREFIX / "bin"
        for file in programs.iterdir() if programs.is_dir() else ():
            if file.name != "py-spy":  # the rest are starters with this folder's path in them
                file.unlink()
        if programs.is_dir() and not any(programs.iterdir()):
            programs.rmdir()


def furnish(root: Path) -> None:
    """What the common package has beside Python packages: interpreter at its final place, command, configuration."""
    programs = root / PREFIX / "bin"
    programs.mkdir(parents=True, exist_ok=True)
    (programs / "python").symlink_to("../../../bin/python3.11")
    home = "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.11\n"
    (root / PREFIX / "pyvenv.cfg").write_text(home)
    command = root / "usr/bin/peerwatch"
    command.parent.mkdir(parents=True)
    command.write_text(LAUNCHER)
    command.chmod(0o755)
    (root / "etc/peerwatch").mkdir(parents=True)
    shutil.copy(ROOT / "systemd/peerwatch.toml", root / "etc/peerwatch")
    for name in ("influxdb", "grafana"):
        shutil.copytree(ROOT / "systemd" / name, root / "usr/share/peerwatch" / name)


def finish(root: Path, package: Package, version: str) -> None:
    """Units, documents and the DEBIAN folder: fields, checksums, conffiles and maintainer scripts."""
    for unit in package.units:
        file = root / "lib/systemd/system" / unit
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text((ROOT / "systemd" / unit).read_text().replace("/opt/peerwatch", f"/{PREFIX}"))
    _document(root, package, version)
    files = sorted(file for file in root.rglob("*") if file.is_file() and not file.is_symlink())
    for file in files:
        file.chmod(0o755 if os.access(file, os.X_OK) and file.parent.name == "bin" else 0o644)
    control = root / "DEBIAN"
    control.mkdir()
    sums = [f"{hashlib.md5(f.read_bytes()).hexdigest()}  {f.relative_to(root)}" for f in files]  # noqa: S324
    (control / "md5sums").write_text("\n".join(sums) + "\n")
    size = sum(file.stat().st_size for file in files) // 1024
    (control / "control").write_text(_fields(package, version, size))
    if package.section == "common":
        (control / "conffiles").write_text("/etc/peerwatch/peerwatch.toml\n")
    for script in sorted((ROOT / "deploy/debian").glob(f"{'service' if package.units else package.section}.*")):
        text = script.read_text().replace("@UNITS@", " ".join(package.units)).replace("@STATE@", package.state)
        (control / script.suffix[1:]).write_text(text)
        (control / script.suffix[1:]).chmod(0o755)


def _fields(package: Package, version: str, size: int) -> str:
    fields = [f"Package: {package.name}", f"Version: {version}", "Architecture: amd64"]
    fields += [f"Maintainer: {MAINTAINER}", f"Installed-Size: {size}", "Section: admin", "Priority: optional"]
    fields.append(f"Depends: {package.depends.format(version=version)}")
    fields += [f"Suggests: {package.suggests}"] if package.suggests else []
    return "\n".join([*fields, f"Description: {package.summary}", f" {package.text}", ""])


def _document(root: Path, package: Package, version: str) -> None:
    folder = root / "usr/share/doc" / package.name
    folder.mkdir(parents=True)
    licence = "Copyright 2026 the contributors of Peerwatch\nLicense: Apache-2.0\n"
    licence += "The text is in /usr/share/common-licenses/Apache-2.0.\n\n"
    bundled = f"The Python packages below /{SITE} have their licences in their .dist-info folders.\n"
    (folder / "copyright").write_text(licence + bundled)
    date = formatdate((ROOT / "CHANGELOG.md").stat().st_mtime)
    entry = f"peerwatch ({version}) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {date}\n"
    (folder / "changelog").write_text(entry)
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    for name in ("changelog", "CHANGELOG.md"):
        _pack(folder / name)
    overrides = root / "usr/share/lintian/overrides" / package.name
    overrides.parent.mkdir(parents=True)
    overrides.write_text(OVERRIDES)


def _pack(file: Path) -> None:
    """Gzip a file in its place, the same bytes each time."""
    file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    file.unlink()


def main(wheels: str, out: str) -> None:
    """Build all packages."""
    os.umask(0o022)
    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="peerwatch-packages-") as folder:
        builder = Builder(Path(wheels), Path(folder))
        for package in PACKAGES:
            file = builder.build(package, place)
            print(f"{file}: {file.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
