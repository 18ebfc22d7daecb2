"""A detector that is killed at each stage of a step, or has its clock set, loses nothing and sends nothing twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from store.open import open_store
from tests.cli.service.scene import QUICKLY, Scene

KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
BEFORE_WRITE = f"""
from store.signed import Signed
write = Signed.write
def dying(self, batches):
    found = list(batches)
    if any(sample.table == "verdict" for batch in found for sample in batch.samples):
        {KILL}
    write(self, found)
Signed.write = dying
"""
BEFORE_DELIVERY = f"""
from detector.alerts.dispatcher import AlertDispatcher
queue = AlertDispatcher._queue
def dying(self, alert, now):
    {KILL}
AlertDispatcher._queue = dying
"""
AFTER_DELIVERY = f"""
from detector.alerts.delivery import SinkQueue
settle = SinkQueue._settle
def dying(self, alert, how, error):
    settle(self, alert, how, error)
    if self.name == "command":
        {KILL}
SinkQueue._settle = dying
"""
IN_SNAPSHOT = f"""
from detector.service import runner, snapshot
runner.KEEP_NS = 1_000_000_000
dump, count = snapshot.dump, 0
def dying(state, at):
    global count
    count += bool(state.incidents.open)
    if count > 5:
        {KILL}
    return dump(state, at)
snapshot.dump = dying
"""
POINTS = {
    "before the verdict is written": BEFORE_WRITE,
    "before it is delivered": BEFORE_DELIVERY,
    "after it was delivered": AFTER_DELIVERY,
    "in the snapshot after that": IN_SNAPSHOT,
}
CLOCK = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = (int)syscall(SYS_clock_gettime, clock, now);
	FILE *file = clock == CLOCK_REALTIME && !failed ? fopen(getenv("PEERWATCH_TEST_CLOCK"), "r") : NULL;
	long ahead = 0;
	if (file) {
		if (fscanf(file, "%ld", &ahead) == 1)
			now->tv_sec += ahead;
		fclose(file);
	}
	return failed;
}
"""
"""A wall clock that is as many seconds ahead as a file says."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene on an embedded store."""
    found = Scene(tmp_path, str(tmp_path / "s.db"), QUICKLY)
    try:
        yield found
    finally:
        found.end()


def verdicts(place: str) -> list[tuple[str, str]]:
    """Machine and level of the verdicts in the store."""
    with closing(open_store(place)) as store:
        return [(row["machine"], row["level"]) for row in store.read("verdict").to_pylist()]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_each_stage_loses_and_doubles_nothing(scene: Scene, point: str) -> None:
    """The next detector completes the alerts, each incident once, whatever the killed one was doing."""
    env = {"STATE_DIRECTORY": str(scene.folder / "a")}
    scene.start("a", standby=False, env=env)
    scene.until(lambda: "judging what comes" in scene.log("a") and (scene.folder / "a/alerts/command.json").exists())
    scene.detectors["a"].terminate()
    assert scene.detectors["a"].wait(30) == 0
    dying = scene.start("a", standby=False, env=env, more=POINTS[point])
    scene.until(lambda: scene.log("a").count("judging what comes") == 2)
    scene.fault("m3", "79")
    scene.until(lambda: dying.poll() is not None)
    assert dying.wait() == -9
    scene.start("a", standby=False, env=env)
    scene.fault("m5", "79")
    scene.until(lambda: len(scene.sent()) == 2)
    scene.until(lambda: len(verdicts(scene.place)) == 2)
    assert sorted(scene.sent()) == [["a", name, "crit", "begun"] for name in ("m3", "m5")]
    assert sorted(verdicts(scene.place)) == [("m3", "crit"), ("m5", "crit")]


@pytest.mark.parametrize("step", [pytest.param(3600, marks=pytest.mark.bench), -3600], ids=["forward", "back"])
def test_a_clock_that_is_set_by_an_hour(scene: Scene, step: int) -> None:
    """Open incidents go on, nothing is called blind, new faults are found, and the log says what happened."""
    if not shutil.which("gcc"):
        pytest.skip("gcc makes the clock that is set")
    library, file = scene.folder / "clock.so", scene.folder / "ahead"
    source = scene.folder / "clock.c"
    source.write_text(CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    file.write_text("0")
    scene.start("a", standby=False, env={"LD_PRELOAD": str(library), "PEERWATCH_TEST_CLOCK": str(file)})
    scene.until(lambda: "judging what comes" in scene.log("a"))
    scene.fault("m3", "79")
    scene.until(lambda: len(scene.sent()) == 1)
    scene.ahead = step
    file.with_suffix(".new").write_text(str(step))
    os.replace(file.with_suffix(".new"), file)
    scene.until(lambda: f"the clock was set {'forward' if step > 0 else 'back'} by" in scene.log("a"))
    scene.fault("m5", "79")
    scene.until(lambda: len(scene.sent()) == 2)
    scene.ended.wait(12)
    assert scene.sent() == [["a", name, "crit", "begun"] for name in ("m3", "m5")]
    assert "blind" not in scene.log("a")
    assert "Traceback" not in scene.log("a")
