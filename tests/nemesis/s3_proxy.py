"""Stands in front of the S3 server and makes it a bad one: late, silent, failing before or after it did what was asked, doing it twice.

Runs as a process of its own: ``python s3_proxy.py HOST PORT SERVER_PORT FAULTS SEED``. FAULTS is a file with one JSON object, read again
and again: the chance of each fault per request. Where there is no file it is a good server. Requests go on as they are: their signatures
stay valid.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}
KINDS = ("late", "refused", "unanswered", "failed_after", "twice", "hang", "denied")


class Faults:
    """What the file says now, and what was done so far."""

    def __init__(self, path: Path, seed: str) -> None:
        self._path, self._chance, self._lock = path, random.Random(seed), threading.Lock()
        self._read_at = 0.0
        self._wanted: dict[str, float] = {}
        self.done: Counter[str] = Counter()

    def draw(self) -> str | None:
        """The fault of the next request, if it has one."""
        with self._lock:
            if time.monotonic() - self._read_at > 0.1:
                self._read_at = time.monotonic()
                try:
                    self._wanted = json.loads(self._path.read_text())
                except (OSError, ValueError):
                    self._wanted = {}
            drawn = self._chance.random()
            for kind in KINDS:
                drawn -= float(self._wanted.get(kind, 0.0))
                if drawn < 0:
                    self.done[kind] += 1
                    return kind
        return None

    def seconds(self, most: float) -> float:
        with self._lock:
            return self._chance.uniform(0.05, most)

    def either(self, one: Any, other: Any) -> Any:
        with self._lock:
            return self._chance.choice((one, other))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: ClassVar[Faults]
    server_port: ClassVar[int]

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.faults.draw()
        if fault == "late":
            time.sleep(self.faults.seconds(3.0))
        elif fault == "hang":
            time.sleep(35.0)
            self.close_connection = True
            return
        elif fault == "refused":
            self._answer((503, [], _problem("SlowDown")))
            return
        elif fault == "denied":
            self._answer((403, [], _problem("ExpiredToken")))
            return
        try:
            answer = self._ask(body)
            if fault == "twice":
                answer = self.faults.either(answer, self._ask(body))
        except (OSError, http.client.HTTPException):
            self._answer((502, [], _problem("InternalError")))
            return
        if fault == "unanswered":
            self.close_connection = True
            return
        self._answer((500, [], _problem("InternalError")) if fault == "failed_after" else answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _forward

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server_port, timeout=60)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _answer(self, answer: tuple[int, list[tuple[str, str]], bytes]) -> None:
        status, headers, body = answer
        self.send_response_only(status)
        sized = {name.lower(): value for name, value in headers}.get("content-length")
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", sized if self.command == "HEAD" and sized else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def _problem(code: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>the nemesis</Message></Error>'.encode()


def main() -> None:
    host, port, behind, path, seed = sys.argv[1:6]
    Handler.faults, Handler.server_port = Faults(Path(path), seed), int(behind)
    done = Path(path).with_name("store-faults-done.json")
    server = Server((host, int(port)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        time.sleep(1.0)
        done.write_text(json.dumps(Handler.faults.done))


if __name__ == "__main__":
    main()
