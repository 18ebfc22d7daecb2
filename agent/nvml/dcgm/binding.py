"""DCGM through its own library, of versions 3 and 4: imported by the child that reads DCGM, never by the agent itself.

Structures and numbers are those of dcgm_agent.h, dcgm_structs.h and dcgm_fields.h, https://github.com/NVIDIA/DCGM
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_char, c_double, c_int, c_int64, c_longlong, c_size_t, c_uint, c_ushort
from typing import Any, NamedTuple

GPU, SWITCH, LINK = 1, 3, 6
"""Kinds of entities (dcgm_field_entity_group_t)."""
_GROUPS = {GPU: 0, SWITCH: 2}  # dcgmGroupType_t: all GPUs, all NVSwitches
WARN, FAIL = 10, 20
"""Results of a health check other than 0, passed."""
_LIVE, _VERSION_MISMATCH = 1, -12
_CONNECT_MS, _KEEP_S, _ENTITIES, _AT_ONCE = 5000, 600.0, 1024, 64
_INT64_BLANK, _FP64_BLANK = 0x7FFFFFFFFFFFFFF0, 140737488355328.0


class _Connect(ctypes.Structure):
    _fields_ = [(name, c_uint) for name in ("version", "persist", "timeout_ms", "is_socket")]


class _Entity(ctypes.Structure):
    _fields_ = (("kind", c_uint), ("number", c_uint))


class _Content(ctypes.Union):
    _fields_ = (("i64", c_int64), ("dbl", c_double), ("blob", c_char * 4096))


class _Value(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("entity", _Entity),
        ("field", c_ushort),
        ("type", c_ushort),
        ("status", c_int),
        ("unused", c_uint),
        ("time_us", c_int64),
        ("value", _Content),
    )


class _HealthSet(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("group", c_size_t),
        ("systems", c_uint),
        ("every_us", c_longlong),
        ("keep_s", c_double),
    )


class _Incident(ctypes.Structure):
    _fields_ = (
        ("system", c_uint),
        ("health", c_uint),
        ("message", c_char * 1024),
        ("code", c_uint),
        ("entity", _Entity),
    )


class _Response4(ctypes.Structure):
    _fields_ = (("version", c_uint), ("overall", c_uint), ("count", c_uint), ("incidents", _Incident * 64))


class _Response5(ctypes.Structure):
    _fields_ = (("version", c_uint), ("overall", c_uint), ("count", c_uint), ("incidents", _Incident * 1024))


_RESPONSES: tuple[tuple[type[ctypes.Structure], int], ...] = ((_Response5, 5), (_Response4, 4))  # DCGM 4, DCGM 2 and 3


class Incident(NamedTuple):
    """What a health check has found: dcgmIncidentInfo_t."""

    kind: int
    number: int
    system: int
    health: int
    message: str


class DcgmError(Exception):
    """What DCGM has refused; the message is errorString's."""


class Engine:
    """A connection to the host engine of this machine; its watches end with it. Raises DcgmError, OSError."""

    def __init__(self, paths: Iterable[str], address: str = "127.0.0.1") -> None:
        self._library = _load(paths)
        self._library.errorString.restype = ctypes.c_char_p
        self._handle, self._responses = c_size_t(), list(_RESPONSES)
        parameters = _versioned(_Connect(timeout_ms=_CONNECT_MS), 2)
        self._check(self._library.dcgmInit())
        self._check(
            self._library.dcgmConnect_v2(address.encode(), ctypes.byref(parameters), ctypes.byref(self._handle))
        )
        self._fields = 0

    def entities(self, kind: int) -> list[int]:
        """The numbers that DCGM has given to the GPUs, switches or links."""
        found, count = (c_uint * _ENTITIES)(), c_int(_ENTITIES)
        self._check(self._library.dcgmGetEntityGroupEntities(self._handle, c_int(kind), found, ctypes.byref(count), 0))
        return list(found[: count.value])

    def group(self, kind: int) -> c_size_t:
        """A group of our own of all GPUs or switches: the default groups' health watches may be another client's."""
        number = c_size_t()
        name = f"peerwatch-{os.getpid()}-{kind}".encode()
        self._check(self._library.dcgmGroupCreate(self._handle, _GROUPS[kind], name, ctypes.byref(number)))
        return number

    def watch(self, group: c_size_t, fields: Sequence[int], period_s: float) -> None:
        """Have the host engine read these fields of a group so often."""
        self._fields += 1
        number, wanted = c_size_t(), (c_ushort * len(fields))(*fields)
        name = f"peerwatch-{os.getpid()}-{self._fields}".encode()
        self._check(self._library.dcgmFieldGroupCreate(self._handle, len(fields), wanted, name, ctypes.byref(number)))
        every_us = c_longlong(round(1e6 * period_s))
        self._check(self._library.dcgmWatchFields(self._handle, group, number, every_us, c_double(_KEEP_S), c_int(0)))

    def values(
        self, kind: int, numbers: Sequence[int], fields: Sequence[int], live: bool = False
    ) -> Iterator[tuple[int, int, float]]:
        """Number of the entity, field and value, where there is one; `live`: from the driver, without a watch."""
        wanted = (c_ushort * len(fields))(*fields)
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            entities = (_Entity * len(some))(*(_Entity(kind, number) for number in some))
            found = (_Value * (len(some) * len(fields)))()
            self._check(
                self._library.dcgmEntitiesGetLatestValues(
                    self._handle, entities, len(some), wanted, len(fields), _LIVE if live else 0, found
                )
            )
            for one in found:
                value = one.value.dbl if one.type == ord("d") else float(one.value.i64)
                if not one.status and value < (_FP64_BLANK if one.type == ord("d") else _INT64_BLANK):
                    yield one.entity.number, one.field, value

    def watch_health(self, group: c_size_t, systems: int, period_s: float) -> None:
        """Have the host engine check the health of a group so often."""
        wanted = _versioned(_HealthSet(0, group.value, systems, round(1e6 * period_s), _KEEP_S), 2)
        self._check(self._library.dcgmHealthSet_v2(self._handle, ctypes.byref(wanted)))

    def health(self, group: c_size_t) -> list[Incident]:
        """What the checks have found since the last call; the first call finds nothing."""
        kind, number = self._responses[0]
        response: Any = _versioned(kind(), number)
        code = self._library.dcgmHealthCheck(self._handle, group, ctypes.byref(response))
        if code == _VERSION_MISMATCH and len(self._responses) > 1:
            del self._responses[0]
            return self.health(group)
        self._check(code)
        return [
            Incident(one.entity.kind, one.entity.number, one.system, one.health, one.message.decode(errors="replace"))
            for one in response.incidents[: response.count]
        ]

    def _check(self, code: int) -> None:
        if code:
            words = self._library.errorString(c_int(code))
            raise DcgmError(words.decode(errors="replace") if words else f"DCGM error {code}")


def _load(paths: Iterable[str]) -> ctypes.CDLL:
    failure = OSError("libdcgm.so is not installed")
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError as error:  # of another architecture, or needs another libc: the next may do
            failure = error
    raise failure


def _versioned(structure: Any, number: int) -> Any:
    """MAKE_DCGM_VERSION: the structure's size, and in the uppermost byte its version."""
    structure.version = ctypes.sizeof(structure) | number << 24
    return structure
