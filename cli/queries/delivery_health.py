"""Whether readings and alerts arrive: NATS streams, their writers, and the sinks of alerts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from cli.config import Settings
from store.nats.config import is_stream
from store.open import open_stream
from store.schema.contract import StoreError

START = "systemctl start peerwatch-agent, or peerwatch up"
WRITE = "systemctl start peerwatch-writer, or peerwatch writer"


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: str
    """on, off or blocked."""
    why: str = ""
    mend: str = ""


def stream(place: str, settings: Settings) -> Finding:
    """Whether agents publish to the stream."""
    try:
        with closing(open_stream(place, settings.nats)) as opened:
            count = opened.message_count()
    except StoreError as error:
        return Finding(f"stream {place}", "off", str(error))
    state = "on" if count else "off"
    return Finding(f"stream {place}", state, f"{count} messages of agents in the stream", "" if count else START)


def writers(settings: Settings, place: str) -> Iterator[Finding]:
    """The writers of the stream that the configuration names, and their backlog."""
    source = settings.writer.ways(place)[0]
    if not is_stream(source):
        return
    try:
        with closing(open_stream(source, settings.nats)) as opened:
            found = opened.writers()
    except StoreError as error:
        yield Finding("writers", "off", str(error))
        return
    if not found:
        yield Finding("writers", "off", f"no writer reads {source}", WRITE)
    for name, one in sorted(found.items()):
        left = one.waiting + one.unsettled
        works = one.asked or not left
        why = f"{left} messages wait" + (f", {one.lost} expired before they were written" if one.lost else "")
        yield Finding(f"writer {name}", "on" if works else "off", why, "" if works else WRITE)


def sinks(settings: Settings, place: str) -> Iterator[Finding]:
    """Each configured sink: whether it can be opened, and the result of the last alert.

    A sink that cannot be opened is "off", not "blocked", where no detector ran: a fleet may share one configuration.
    """
    from detector.alerts.delivery_log import read_delivery_log
    from detector.alerts.open import open_sink
    from detector.alerts.registry import folder_of

    folder = folder_of(settings.alerts, place)
    wrong = "blocked" if folder.is_dir() else "off"
    for name in settings.alerts.sinks:
        mend = f"peerwatch alerts test {name}"
        try:
            open_sink(name, settings.alerts, place, settings.influxdb)
            delivery_log = read_delivery_log(folder / f"{name}.json")
        except (OSError, ValueError) as error:
            yield Finding(f"sink {name}", wrong, str(error), mend)
            continue
        if delivery_log and delivery_log.error:
            yield Finding(f"sink {name}", wrong, f"the last alert failed: {delivery_log.error}", mend)
        else:
            yield Finding(f"sink {name}", "on", f"{delivery_log.delivered if delivery_log else 0} alerts delivered")
