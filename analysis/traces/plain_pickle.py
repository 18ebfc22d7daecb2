"""Reads a pickle that holds nothing but plain data: no class and no function is ever looked up or called.

PyTorch dumps its Flight Recorder as a pickle. Pickles are programs: instructions other than those that build plain
data are refused before the first of them runs, and so are places of the memo that only waste memory.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, NoReturn

from analysis.traces.bounded import TraceError, opened

FILE_BYTES = 64 << 20
_PLAIN = frozenset(
    re.findall(
        r"\w+",
        """PROTO FRAME STOP MARK POP POP_MARK MEMOIZE PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET NONE NEWTRUE
        NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE
        BINUNICODE8 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_LIST LIST APPEND APPENDS
        EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET""",
    )
)
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks to import {module[:60]}.{name[:60]}")


def read_plain(path: Path) -> Any:
    """What the file holds: dictionaries, lists, tuples, sets, texts and numbers. Raises TraceError for all else."""
    with opened(path) as stream:
        data = stream.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise TraceError(f"{path} is a pickle of more than {FILE_BYTES >> 20} MB; dump it as JSON")
    try:
        _check(data)
        return _Plain(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle raises whatever its instructions lead to
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(f"{path} is refused as a pickle: {text[:160]}; dump plain data, or JSON") from None


def _check(data: bytes) -> None:
    """Raise UnpicklingError for an instruction that is not needed for plain data."""
    for number, (instruction, value, _) in enumerate(pickletools.genops(data)):
        if instruction.name not in _PLAIN:
            raise pickle.UnpicklingError(f"it holds more than plain data ({instruction.name} {value or ''})")
        if instruction.name in _PUTS and int(value or 0) > number:
            raise pickle.UnpicklingError(f"it numbers an object {value}, of {number} before it")
