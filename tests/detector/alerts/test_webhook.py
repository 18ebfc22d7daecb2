"""The webhook: what it posts, what it does with each answer, and that its address stays secret."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detector.alerts.alert import Alert, IncidentTracker, RefusedError, RetryLaterError, sample
from detector.alerts.brief import Brief, Number
from detector.alerts.sinks.webhook import Webhook, WebhookConfig
from detector.model.verdict import Level, Verdict
from store.schema.time import SECOND
from tests.wires import Reply, Scripted

NOW = 1_780_000_000 * SECOND
SECRET = "/services/T0/hush-4711"  # noqa: S105 - made up


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
    incidents, found = IncidentTracker(), []
    for at, level in enumerate(levels):
        time = NOW + 60 * at * SECOND
        said = f"m3 <gpu:1> is {level} & more"
        alert = incidents.record(Verdict(time, "t9", "m3", "gpu:1", "peer", "a.b", 2.25, NOW - 7 * SECOND, level, said))
        assert alert is not None
        found.append(alert)
    return found


def hook(server: Scripted, **settings: Any) -> Webhook:
    """A webhook to that server."""
    return Webhook(WebhookConfig(url=server.url + SECRET, **settings), lambda: NOW)


def posted(server: Scripted) -> list[Any]:
    """What the server took."""
    return [json.loads(body) for body in server.received]


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
    """The first line says what is wrong, with Slack's signs escaped; the end how long it took and what it was."""
    server = serve()
    webhook = hook(server, template="slack")
    begun, over = alerts("crit", "ok")
    webhook.send(begun)
    webhook.send(over)
    first, last = (body["text"].splitlines() for body in posted(server))
    assert first == [
        "*CRIT* m3 &lt;gpu:1&gt; is crit &amp; more",
        "since 20:26:33 UTC, task t9",
        f"more: peerwatch show {begun.incident}",
    ]
    ok = "*OK* m3 &lt;gpu:1&gt; is ok &amp; more, after 67 s. It was: m3 &lt;gpu:1&gt; is crit &amp; more"
    assert last == [ok, f"incident {begun.incident}"]


RUDE = "<!here> & <https://evil.test|click>\n*fine*"


def test_no_name_reaches_slack_as_a_mention(serve: Callable[..., Scripted]) -> None:
    """Task, machine, device, message and all that a brief carries are escaped, and stay on their line."""
    server = serve()
    number = Number("gpu.x", RUDE, 1.5, 2.5, 3.5, "", RUDE)
    brief = Brief("kind", RUDE, RUDE, (RUDE,), (number, number), 7, {"uuid": RUDE})
    said = Verdict(NOW, RUDE, RUDE, RUDE, "peer", RUDE, 2.25, NOW - 7 * SECOND, "crit", RUDE)
    alert = IncidentTracker().record(said)
    assert alert
    hook(server, template="slack").send(replace(alert, brief=brief))
    text = posted(server)[0]["text"]
    assert "<" not in text
    assert ">" not in text
    assert text.count("&lt;!here&gt; &amp; &lt;https://evil.test|click&gt; *fine*") >= 7
    assert len(text.splitlines()) == 8


HOT = Brief(
    "gpu_heat",
    "a GPU that is slow by heat",
    "Look at fans.",
    (),
    (Number("gpu.sm_clock_hertz", "gpu:1", 1.14e9, 1.93e9, 1.95e9, "hertz", "clock 1.14 GHz, peers 1.95 GHz"),),
    15,
    {"uuid": "GPU-5eed", "serial": "1650023", "pci_address": "0000:3b:00.0"},
)


def test_every_form_carries_cause_numbers_hardware_and_next_step(serve: Callable[..., Scripted]) -> None:
    """The alert has what `peerwatch show` knows, and the command that shows more."""
    server = serve()
    alert = replace(alerts("crit")[0], brief=HOT)
    for template in ("json", "slack", "alertmanager"):
        hook(server, template=template).send(alert)
    plain, slack, ((manager),) = posted(server)
    assert (plain["likely"], plain["next"], plain["peers"]) == (HOT.likely, "Look at fans.", 15)
    assert plain["hardware"]["serial"] == "1650023"
    assert (plain["numbers"][0]["value"], plain["numbers"][0]["usual"], plain["numbers"][0]["unit"]) == (
        1.14e9,
        1.95e9,
        "hertz",
    )
    for line in (
        "Likely a GPU that is slow by heat: clock 1.14 GHz, peers 1.95 GHz",
        "compared with 15 other machines",
        "gpu:1: UUID GPU-5eed, serial 1650023, PCI 0000:3b:00.0",
        "next: Look at fans.",
        f"peerwatch show {alert.incident}",
    ):
        assert line in slack["text"]
    notes = manager["annotations"]
    assert notes["summary"].endswith("slow by heat: clock 1.14 GHz, peers 1.95 GHz")
    assert (notes["next"], notes["serial"], notes["uuid"]) == ("Look at fans.", "1650023", "GPU-5eed")
    assert f"peerwatch show {alert.incident}" in notes["description"]


def test_alertmanager_gets_one_identity(serve: Callable[..., Scripted]) -> None:
    """Beginning and end have the same labels; an alert that is not repeated ends by itself."""
    server = serve()
    webhook = hook(server, template="alertmanager")
    for alert in alerts("warn", "ok"):
        webhook.send(alert)
    (begun,), (over,) = posted(server)
    assert begun["labels"] == over["labels"]
    assert begun["labels"].items() >= {"machine": "m3", "task": "t9", "severity": "warning"}.items()
    assert (begun["startsAt"], begun["endsAt"]) == ("2026-05-28T20:26:33Z", "2026-05-28T20:30:40Z")
    assert over["endsAt"] == "2026-05-28T20:27:40Z"
    assert webhook.repeat_s == 60
    assert hook(server).repeat_s == 0


def test_alertmanager_keeps_one_alert_firing_when_it_gets_worse(serve: Callable[..., Scripted]) -> None:
    """The post that says critical ends the warning, whatever of both had been delivered before; so does the end."""
    server = serve()
    webhook = hook(server, template="alertmanager")
    for alert in alerts("warn", "crit", "ok"):
        webhook.send(alert)
    firing: dict[str, str] = {}
    for post, at in zip(posted(server), ("20:26:40", "20:26:40", "20:28:40"), strict=True):
        firing |= {one["labels"]["severity"]: one["endsAt"] for one in post}
        open_now = [severity for severity, ends in firing.items() if ends > f"2026-05-28T{at}Z"]
        assert len(open_now) <= 1, firing
    assert firing == {"warning": "2026-05-28T20:26:40Z", "critical": "2026-05-28T20:28:40Z"}


def test_a_test_is_harmless(serve: Callable[..., Scripted]) -> None:
    """A test alert of each form says that it is a test and names no machine; Alertmanager shows it for minutes."""
    server = serve()
    for template in ("json", "slack", "alertmanager"):
        hook(server, template=template).test(sample(NOW, 8))
    plain, slack, (manager,) = posted(server)
    assert (plain["event"], plain["level"]) == ("test", "ok")
    assert "nothing is wrong" in slack["text"]
    assert (manager["labels"]["alertname"], manager["labels"]["severity"]) == ("PeerwatchTest", "warning")
    assert (manager["startsAt"], manager["endsAt"]) == ("2026-05-28T20:26:40Z", "2026-05-28T20:30:40Z")


@pytest.mark.parametrize(
    ("status", "headers", "error", "rest"),
    [
        (429, {"Retry-After": "37"}, RetryLaterError, 37.0),
        (503, {}, RetryLaterError, 0.0),
        (404, {}, RetryLaterError, 0.0),
        (302, {"Location": "http://127.0.0.1:9/elsewhere"}, RetryLaterError, 0.0),
        (400, {}, RefusedError, None),
        (413, {}, RefusedError, None),
    ],
)
def test_answers(
    serve: Callable[..., Scripted], status: int, headers: dict[str, str], error: type[Exception], rest: float | None
) -> None:
    """The webhook retries errors that may pass, as late as the server wants, and refuses those that never will."""
    server = serve((status, f"no\nroom at {SECRET}", headers))
    with pytest.raises(error, match=rf"127.0.0.1 answers {status}: no room at …") as caught:
        hook(server).send(alerts("warn")[0])
    assert SECRET not in str(caught.value)
    assert getattr(caught.value, "rest_s", None) == rest
    assert len(server.asked) == 1


def test_no_server_and_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The error names a closed port or a server that does not answer, without the address."""
    with caplog.at_level(logging.DEBUG), socket.create_server(("127.0.0.1", 0)) as mute:
        for port, why in ((mute.getsockname()[1], "timed out"), (1, "refused")):
            webhook = Webhook(WebhookConfig(url=f"http://127.0.0.1:{port}{SECRET}", timeout_seconds=0.2), lambda: NOW)
            with pytest.raises(RetryLaterError, match=f"127.0.0.1 cannot be reached: .*{why}") as caught:
                webhook.send(alerts("warn")[0])
            assert SECRET not in f"{caught.value}{caught.value.__cause__}"
    assert SECRET not in caplog.text


def test_the_address_comes_from_a_file_or_a_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address comes from the named file, the settings or systemd's credential; without one an error says so."""
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
    """Settings that are printed by mistake show no secret."""
    assert "hush" not in repr(WebhookConfig(url="https://a.test/hush"))
