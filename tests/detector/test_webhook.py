"""The webhook: what is posted, what is done with each answer, and that its address is told to nobody."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detector.alert import Alert, Book, LaterError, RefusedError, sample
from detector.alerts.webhook import Webhook, WebhookConfig
from detector.config import SECOND
from detector.verdict import Level, Verdict
from tests.wires import Reply, Scripted

NOW = 1_780_000_000 * SECOND
SECRET = "/services/T0/hush-4711"  # noqa: S105 - of nobody


@pytest.fixture
def serve() -> Iterator[Callable[..., Scripted]]:
    """A function that starts a real HTTP server which answers so."""
    servers: list[Scripted] = []

    def make(reply: Reply = (204, "", {})) -> Scripted:
        servers.append(Scripted(lambda _: reply))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def alerts(*levels: Level) -> list[Alert]:
    """One incident on m3 that goes through these levels, a minute apart."""
    book, found = Book(), []
    for at, level in enumerate(levels):
        time = NOW + 60 * at * SECOND
        said = f"m3 <gpu:1> is {level} & more"
        alert = book.enter(Verdict(time, "t9", "m3", "gpu:1", "peer", "a.b", 2.25, NOW - 7 * SECOND, level, said))
        assert alert is not None
        found.append(alert)
    return found


def hook(server: Scripted, **told: Any) -> Webhook:
    """A webhook to that server."""
    return Webhook(WebhookConfig(url=server.url + SECRET, **told), lambda: NOW)


def posted(server: Scripted) -> list[Any]:
    """What the server took."""
    return [json.loads(body) for body in server.kept]


def test_json_carries_the_whole_alert(serve: Callable[..., Scripted], tmp_path: Path) -> None:
    """Path, headers and body are those of the alert; a token comes from its file."""
    server = serve()
    (tmp_path / "token").write_text("s3cret\nnot this\n")
    (alert,) = alerts("crit")
    assert hook(server, token_file=str(tmp_path / "token")).send(alert) == "127.0.0.1 answered 204"
    path, headers = server.asked[0]
    assert (path, headers["Content-Type"], headers["Authorization"]) == (SECRET, "application/json", "Bearer s3cret")
    assert posted(server) == [alert.as_json()]


def test_slack_gets_one_readable_text(serve: Callable[..., Scripted]) -> None:
    """Level, task and words, with Slack's own signs escaped; the end says how long it took and what it was."""
    server = serve()
    webhook = hook(server, template="slack")
    begun, over = alerts("crit", "ok")
    webhook.send(begun)
    webhook.send(over)
    first, last = (body["text"] for body in posted(server))
    assert first == f"*CRIT* (task t9, incident {begun.incident}) m3 &lt;gpu:1&gt; is crit &amp; more"
    assert last.startswith("*OK*")
    assert last.endswith("after 67 s. It was: m3 &lt;gpu:1&gt; is crit &amp; more")


def test_alertmanager_gets_one_identity(serve: Callable[..., Scripted]) -> None:
    """The labels of beginning and end are the same; what lasts ends by itself unless it is told again."""
    server = serve()
    webhook = hook(server, template="alertmanager")
    for alert in alerts("crit", "ok"):
        webhook.send(alert)
    (begun,), (over,) = posted(server)
    assert begun["labels"] == over["labels"]
    assert begun["labels"].items() >= {"machine": "m3", "task": "t9", "severity": "crit"}.items()
    assert (begun["startsAt"], begun["endsAt"]) == ("2026-05-28T20:26:33Z", "2026-05-28T20:30:40Z")
    assert over["endsAt"] == "2026-05-28T20:27:40Z"
    assert webhook.repeat_s == 60
    assert hook(server).repeat_s == 0


def test_a_test_is_harmless(serve: Callable[..., Scripted]) -> None:
    """In each form a test says that it is one and holds nothing against anybody."""
    server = serve()
    for template in ("json", "slack", "alertmanager"):
        hook(server, template=template).test(sample(NOW, 8))
    plain, slack, (manager,) = posted(server)
    assert (plain["event"], plain["level"]) == ("test", "ok")
    assert "nothing is wrong" in slack["text"]
    assert (manager["labels"]["alertname"], manager["startsAt"]) == ("PeerwatchTest", manager["endsAt"])


@pytest.mark.parametrize(
    ("status", "headers", "error", "rest"),
    [
        (429, {"Retry-After": "37"}, LaterError, 37.0),
        (503, {}, LaterError, 0.0),
        (404, {}, LaterError, 0.0),
        (302, {"Location": "http://127.0.0.1:9/elsewhere"}, LaterError, 0.0),
        (400, {}, RefusedError, None),
        (413, {}, RefusedError, None),
    ],
)
def test_answers(
    serve: Callable[..., Scripted], status: int, headers: dict[str, str], error: type[Exception], rest: float | None
) -> None:
    """What may work later is tried later, as late as the server wants; what never will is refused."""
    server = serve((status, f"no\nroom at {SECRET}", headers))
    with pytest.raises(error, match=rf"127.0.0.1 answers {status}: no room at …") as caught:
        hook(server).send(alerts("warn")[0])
    assert SECRET not in str(caught.value)
    assert getattr(caught.value, "rest_s", None) == rest
    assert len(server.asked) == 1


def test_nobody_there_and_nobody_answering(caplog: pytest.LogCaptureFixture) -> None:
    """A closed port and a server that says nothing are said as such, without the address."""
    with caplog.at_level(logging.DEBUG), socket.create_server(("127.0.0.1", 0)) as mute:
        for port, why in ((mute.getsockname()[1], "timed out"), (1, "refused")):
            webhook = Webhook(WebhookConfig(url=f"http://127.0.0.1:{port}{SECRET}", timeout_seconds=0.2), lambda: NOW)
            with pytest.raises(LaterError, match=f"127.0.0.1 cannot be reached: .*{why}") as caught:
                webhook.send(alerts("warn")[0])
            assert SECRET not in f"{caught.value}{caught.value.__cause__}"
    assert SECRET not in caplog.text


def test_the_address_comes_from_a_file_or_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is named, else the settings, else systemd's credential; without any it is said what to do."""
    (tmp_path / "webhook-url").write_text("https://credential.test/x\n")
    (tmp_path / "file").write_text("https://file.test/y\n")
    with pytest.raises(ValueError, match=r"alerts\.webhook names no address"):
        WebhookConfig().address()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert WebhookConfig().address() == "https://credential.test/x"
    assert WebhookConfig(url="https://settings.test/z").address() == "https://settings.test/z"
    assert WebhookConfig(url_file=str(tmp_path / "file")).address() == "https://file.test/y"
    with pytest.raises(ValueError, match=r"url_file .*none cannot be read: No such file"):
        WebhookConfig(url_file=str(tmp_path / "none")).address()


@pytest.mark.parametrize(
    "url", ["ftp://a.test/hush", "https://u:hush@a.test/", "https://a.test/hu sh", "hush", "http://["]
)
def test_a_bad_address_is_refused_and_not_repeated(url: str) -> None:
    """The error says what an address looks like, never what was written."""
    with pytest.raises(ValueError, match="write https://SERVER/PATH") as caught:
        WebhookConfig(url=url)
    assert "hush" not in str(caught.value)


def test_settings_show_no_address() -> None:
    """Printed by mistake, the settings hold no secret."""
    assert "hush" not in repr(WebhookConfig(url="https://a.test/hush"))
