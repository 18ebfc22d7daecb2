"""The caller makes exactly the calls it says."""

import json
import subprocess

import pytest

from emulator.cluster.machine import command
from emulator.libraries.build import Libraries
from emulator.shared.errors import CallError
from emulator.training.call_generator import ARGUMENTS, MIX, main, make_calls, parse_mix
from emulator.training.ctypes_api import PROTOTYPES, Calls


class Counting(Calls):
    """A door that counts what really goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[str, int] = {}

    def function(self, name: str) -> object:
        """Count instead of calling."""

        def count(*arguments: object) -> None:
            assert arguments == ARGUMENTS[name]
            self.made[name] = self.made.get(name, 0) + 1

        return count


@pytest.mark.parametrize("total", [0, 1, 7, 11, 1003])
def test_counts_are_exact(total: int) -> None:
    """What is reported is what was called, and the sum is what was asked for, whatever the remainder."""
    door = Counting()
    made = make_calls(door, parse_mix(MIX), total)
    assert sum(made.values()) == total
    assert {name: count for name, count in made.items() if count} == door.made


def test_every_callable_has_a_prototype_that_fits(libraries: Libraries) -> None:
    """Each function of a mix can be called on the emulated libraries with the arguments it is given."""
    calls = Calls(libraries.cudart, libraries.nccl)
    for name, arguments in ARGUMENTS.items():
        assert len(arguments) == len(PROTOTYPES[name])
        calls.result(name, *arguments)
    assert calls.totals() == dict.fromkeys(sorted(ARGUMENTS), 1)


def test_waits_for_a_line_before_and_after(libraries: Libraries) -> None:
    """With --wait it says its process id first, and calls only when a line comes."""
    arguments = ("--wait", "--calls=13", "--mix=ncclSend=2,ncclRecv", f"--library={libraries.nccl}")
    with subprocess.Popen(
        command("training.call_generator", arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        assert json.loads(process.stdout.readline()) == {"ready": process.pid}
        process.stdin.write("go\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"calls": {"ncclRecv": 4, "ncclSend": 9}}
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(5) == 0


@pytest.mark.parametrize("mix", ["ncclNonsense=1", "ncclSend=-2", ""])
def test_unknown_mix_is_refused(mix: str, libraries: Libraries, capsys: pytest.CaptureFixture[str]) -> None:
    """A mix with an unknown name or a wrong weight is one line that lists what can be called."""
    with pytest.raises(CallError, match="a mix is name=weight"):
        parse_mix(mix)
    assert main([f"--mix={mix}", f"--library={libraries.nccl}"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
