"""An InfluxDB server: writes and queries, in its first (/write) or second (/api/v2/write) dialect.

The second is spoken through influxdb-client; VictoriaMetrics takes both. https://docs.influxdata.com/influxdb/
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import urllib3

from store.influx.answers import client_answer, explain, one_line, retry_after, server_message
from store.influx.config import Address, InfluxConfig
from store.influx.server_start import ServerStart
from store.schema.contract import StoreError
from store.transport.answers import NO_ANSWER, Answer

log = logging.getLogger(__name__)

CONNECT_S = 5.0
_PIECE_BYTES = 1 << 16
_LENGTHS = {"content-length", "transfer-encoding"}
"""Headers of which an answer has one, so that its end is known."""


class Server:
    """One server and one database of it. The first write or query connects."""

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
        """Send line protocol, packed by gzip, times in nanoseconds. Never raises for errors of server or network."""
        try:
            return self._write_v2(body) if self.dialect() == "v2" else self._write_v1(body)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(NO_ANSWER, one_line(error))

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
            raise StoreError(self.explain(Answer(NO_ANSWER, one_line(error)))) from error

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
                    said = found.headers.get("X-Influxdb-Error") or server_message(found.read(1 << 16))
                    raise StoreError(self.explain(Answer(found.status, one_line(said))))
                if not _LENGTHS & set(map(str.lower, found.headers)):
                    # Cut off within its headers: what follows would be taken for an answer without rows.
                    raise StoreError(self.explain(Answer(NO_ANSWER, "the answer breaks off in its headers")))
                yield found.headers.get("Content-Type", ""), iter(lambda: found.read(_PIECE_BYTES), b"")
            finally:
                # What was not read to its end would be taken for the beginning of the next answer.
                found.close()
                found.release_conn()
        except StoreError:
            raise
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, one_line(error)))) from error

    def flux(self, text: str) -> bytes:
        """The answer to a Flux query through influxdb-client, as annotated CSV. Raises StoreError."""
        from influxdb_client import Dialect
        from influxdb_client.rest import ApiException

        form = Dialect(annotations=["datatype", "group"], header=True, date_time_format="RFC3339Nano")
        try:
            found: bytes = self._through_client().query_api().query_raw(text, dialect=form).data
            return found
        except ApiException as error:
            raise StoreError(self.explain(client_answer(error))) from error
        except urllib3.exceptions.HTTPError as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, one_line(error)))) from error

    def explain(self, answer: Answer) -> str:
        """One line that names cause and mend; a token is never in it."""
        return explain(self.address, answer)

    def close(self) -> None:
        """Release the connections."""
        self._pool.clear()
        if self._client is not None:
            self._client.close()

    def _write_v1(self, body: bytes) -> Answer:
        query = urlencode({"db": self.address.database, "precision": "ns"})
        headers = {**self._headers("v1"), "Content-Encoding": "gzip"}
        for _ in range(2):
            found = self._pool.request("POST", f"{self.address.url}/write?{query}", body=body, headers=headers)
            answer = Answer(found.status, server_message(found.data), retry_after(found.headers.get("Retry-After")))
            if found.status != 404 or "database not found" not in answer.reason or not self._create():
                break
        return answer

    def begin(self) -> None:
        """Begin the database, of a server of the first dialect. Raises StoreError where that is not allowed."""
        try:
            made = self.dialect() == "v1" and self._create()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreError(self.explain(Answer(NO_ANSWER, one_line(error)))) from error
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
            return client_answer(error)
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
