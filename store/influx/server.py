"""An InfluxDB server: what is sent to it and what it answers, in its first (/write) or second (/api/v2/write) dialect.

The second is spoken through influxdb-client; VictoriaMetrics takes both. https://docs.influxdata.com/influxdb/
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import urllib3

from store.influx.config import Address, InfluxConfig
from store.influx.server_start import ServerStart
from store.schema.contract import StoreError
from store.transport import NO_ANSWER, Answer

log = logging.getLogger(__name__)

CONNECT_S = 5.0
_PIECE_BYTES = 1 << 16


class Server:
    """One server and one database of it. Nothing is asked of it before the first write or query."""

    def __init__(self, address: Address, config: InfluxConfig) -> None:
        self.address, self.config = address, config
        self._token = config.token()
        self._dialect = "" if config.dialect == "auto" else config.dialect
        self._client: Any = None
        self._lock = threading.Lock()
        self._pool = urllib3.PoolManager(
            maxsize=4,
            retries=False,
            timeout=urllib3.Timeout(connect=CONNECT_S, read=config.timeout_seconds),
            ca_certs=config.ca_file or None,
        )
        self._server_start = ServerStart(address.url)
        self._server_start.watch(self._pool)

    def write(self, body: bytes) -> Answer:
        """Send line protocol, packed by gzip, times in nanoseconds. Never raises for what server or network do."""
        try:
            return self._write_v2(body) if self.dialect() == "v2" else self._write_v1(body)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(NO_ANSWER, _line(error))

    def dialect(self) -> str:
        """v1 or v2: as configured, else by the version that /ping tells. Raises urllib3's HTTPError."""
        with self._lock:
            if not self._dialect:
                found = self._pool.request("GET", f"{self.address.url}/ping", headers=self._headers("v1"))
                version = found.headers.get("X-Influxdb-Version", "").lstrip("v")
                self._dialect = "v1" if version.startswith(("0.", "1.")) else "v2"
                log.info("%s is version %s: dialect %s", self.address.url, version or "unknown", self._dialect)
            return self._dialect

    def began(self) -> str:
        """Since when the server runs, in its own words; empty where it says nothing of it. Raises StoreError."""
        try:
            dialect = self.dialect()
            return self._server_start.began(self._pool, dialect, self._headers(dialect))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, _line(error)))) from error

    @contextmanager
    def query(self, text: str, accept: str = "application/x-msgpack") -> Iterator[tuple[str, Iterator[bytes]]]:
        """The answer to an InfluxQL query as it comes: its content type and its pieces. Raises StoreError."""
        fields = {"db": self.address.database, "q": text, "epoch": "ns", "chunked": "true", "chunk_size": "10000"}
        headers = {**self._headers(self._dialect or "v1"), "Accept": accept}
        try:
            found = self._pool.request(
                "GET", f"{self.address.url}/query", fields=fields, headers=headers, preload_content=False
            )
            try:
                if found.status != 200:
                    said = found.headers.get("X-Influxdb-Error") or _said(found.read(1 << 16))
                    raise StoreError(self.explain(Answer(found.status, _line(said))))
                yield found.headers.get("Content-Type", ""), iter(lambda: found.read(_PIECE_BYTES), b"")
            finally:
                # What was not read to its end would be taken for the beginning of the next answer.
                found.close()
                found.release_conn()
        except StoreError:
            raise
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, _line(error)))) from error

    def flux(self, text: str) -> bytes:
        """The answer to a Flux query through influxdb-client, as annotated CSV. Raises StoreError."""
        from influxdb_client import Dialect
        from influxdb_client.rest import ApiException

        form = Dialect(annotations=["datatype", "group"], header=True, date_time_format="RFC3339Nano")
        try:
            found: bytes = self._through_client().query_api().query_raw(text, dialect=form).data
            return found
        except ApiException as error:
            raise StoreError(self.explain(_answer(error))) from error
        except urllib3.exceptions.HTTPError as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, _line(error)))) from error

    def explain(self, answer: Answer) -> str:
        """One line that names cause and mend; a token is never in it."""
        if answer.status == NO_ANSWER:
            return f"{self.address} does not answer: {answer.reason}; is the server up and the address right?"
        why = f"{answer.status}{answer.reason and ': ' + answer.reason}"
        if "dbrp" in answer.reason.lower():
            return f'{self.address} has no name for InfluxQL ({why}): set influxdb.reading = "flux", or map the bucket'
        if answer.status in (401, 403):
            return f"{self.address} refuses this token ({why}): influxdb.token_file must name one that is valid here"
        if "beyond retention policy" in answer.reason:
            return (
                f"{self.address} keeps rows for a shorter time than these are old ({why}): copy later ones (--since), "
                "or raise influxdb.keep_days before the database is created"
            )
        if answer.status == 404:
            return f"{self.address} is not there ({why}): create the database or bucket, or name another store"
        return f"{self.address} answers {why}"

    def close(self) -> None:
        """Let go of the connections."""
        self._pool.clear()
        if self._client is not None:
            self._client.close()

    def _write_v1(self, body: bytes) -> Answer:
        query = urlencode({"db": self.address.database, "precision": "ns"})
        headers = {**self._headers("v1"), "Content-Encoding": "gzip"}
        for _ in range(2):
            found = self._pool.request("POST", f"{self.address.url}/write?{query}", body=body, headers=headers)
            answer = Answer(found.status, _said(found.data), _retry_after(found.headers.get("Retry-After")))
            if found.status != 404 or "database not found" not in answer.reason or not self._create():
                break
        return answer

    def begin(self) -> None:
        """Begin the database, of a server of the first dialect. Raises StoreError where that is not allowed."""
        try:
            made = self.dialect() == "v1" and self._create()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, _line(error)))) from error
        if not made:
            raise StoreError(
                f"{self.address} is not there, and this user may not create it: have it created there first"
            )

    def _create(self) -> bool:
        """Begin the database; whether that worked. A name cannot leave its quotes."""
        name = self.address.database.replace("\\", "\\\\").replace('"', '\\"')
        text = f'CREATE DATABASE "{name}" WITH DURATION {self.config.keep_days}d'
        found = self._pool.request(
            "POST", f"{self.address.url}/query", fields={"q": text}, headers=self._headers("v1"), encode_multipart=False
        )
        if found.status == 200 and b'"error"' not in found.data:
            log.info("%s is new; it keeps rows for %d days", self.address, self.config.keep_days)
            return True
        return False

    def _write_v2(self, body: bytes) -> Answer:
        from influxdb_client.rest import ApiException
        from influxdb_client.service.write_service import WriteService

        service = WriteService(self._through_client().api_client)
        try:
            _, status, _ = service.post_write_with_http_info(
                self.config.org, self.address.database, body, precision="ns", content_encoding="gzip"
            )
        except ApiException as error:
            return _answer(error)
        return Answer(int(status))

    def _through_client(self) -> Any:
        """influxdb-client, loaded when it is first needed: it takes some 15 MB."""
        if self._client is None:
            from influxdb_client import InfluxDBClient

            self._client = InfluxDBClient(
                url=self.address.url,
                token=self._token or None,
                org=self.config.org or "-",
                timeout=(round(CONNECT_S * 1000), round(self.config.timeout_seconds * 1000)),
                ssl_ca_cert=self.config.ca_file or None,
            )
            self._server_start.watch(self._client.api_client.rest_client.pool_manager)
        return self._client

    def _headers(self, dialect: str) -> dict[str, str]:
        if not self._token:
            return {}
        if dialect == "v1" and ":" in self._token:
            return dict(urllib3.make_headers(basic_auth=self._token))
        return {"Authorization": f"Token {self._token}"}


def _answer(error: Any) -> Answer:
    """What influxdb-client raises, as an answer."""
    if not error.status:
        return Answer(NO_ANSWER, _line(error.reason))
    headers = error.headers or {}
    body = error.body.encode() if isinstance(error.body, str) else error.body or b""
    return Answer(int(error.status), _said(body), _retry_after(headers.get("Retry-After")))


def _said(body: bytes) -> str:
    """The server's own words out of its answer, in one line."""
    text = body.decode(errors="replace").strip()
    with suppress(ValueError, AttributeError):  # not every server or proxy answers in JSON
        found = json.loads(text)
        text = str(found.get("error") or found.get("message") or text)
    return _line(text)


def _line(error: object) -> str:
    if isinstance(error, urllib3.exceptions.HTTPError):
        # Their words begin with the Python object that failed.
        error = re.sub(r"^\w+\(.*?\): ", "", str(error)) or type(error).__name__
    return " ".join(str(error).split())[:300] or (type(error).__name__ if isinstance(error, Exception) else "")


def _retry_after(header: str | None) -> float | None:
    """Seconds, which the header gives as such or as a date."""
    if not header:
        return None
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return None
