"""Serve the page of runs in progress on loopback: read-only, and only to those who know the token."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from starling.errors import UserError, printable

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
"""Names by which a browser of this machine, or at the end of a tunnel, may ask.

A website whose name was made to point to this machine (DNS rebinding) asks by its own name.
"""
MOST_CONNECTIONS = 32
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_RANGE = re.compile(r"bytes=(\d{1,12})-(\d{0,12})")


@dataclass(frozen=True)
class File:
    """One answer: its content, type, and a tag that changes with the content."""

    content: bytes
    mime: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


Find = Callable[[str], File | None]
"""Returns the file at a path below the token, "" is the page; None if there is none. Called by several threads."""


class LiveServer(socketserver.ThreadingTCPServer):
    """Serves what `find` returns at `http://127.0.0.1:PORT/TOKEN/`.

    Args:
        find: returns files by path.
        port: port to listen on; 0 takes a free one.

    Raises:
        UserError: the port cannot be used.
    """

    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, find: Find, port: int = 0) -> None:
        self.find, self.token = find, secrets.token_urlsafe(24)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = f"port {port} of {ADDRESS} cannot be used: {error.strerror}"
            raise UserError(f"{reason}; choose another with --port, or leave it out for a free one") from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless there are too many already."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what went wrong in one line; a browser that hangs up is no error."""
        error = sys.exception()
        if not isinstance(error, OSError):
            print(f"warning: a request failed: {printable(repr(error))}", file=sys.stderr)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Starling", ""
    timeout = 20.0

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log of requests: their paths have the token."""

    def _answer(self, *, with_content: bool) -> None:
        if not _is_own(self.headers.get("Host", "")):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "this server answers to 127.0.0.1 and localhost only")
            return
        path = self.path.partition("?")[0]
        token, slash, rest = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode("latin-1", "replace"), self.server.token.encode()):
            self._refuse(HTTPStatus.NOT_FOUND, "not found: open the address that starling watch has printed")
        elif not slash:
            self._send(HTTPStatus.PERMANENT_REDIRECT, {"Location": f"/{token}/", "Content-Length": "0"})
        elif (file := self.server.find(rest)) is None:
            self._refuse(HTTPStatus.NOT_FOUND, "not found")
        elif self.headers.get("If-None-Match") == file.tag:
            self._send(HTTPStatus.NOT_MODIFIED, {"ETag": file.tag})
        else:
            self._send_file(file, with_content=with_content)

    def _send_file(self, file: File, *, with_content: bool) -> None:
        """Send a file, or the part of it that is asked for: players of videos need that to seek."""
        size, headers = len(file.content), {"Content-Type": file.mime, "ETag": file.tag, "Accept-Ranges": "bytes"}
        status, start, end = HTTPStatus.OK, 0, size
        if (part := _RANGE.fullmatch(self.headers.get("Range", ""))) and int(part[1]) < size:
            start, end = int(part[1]), min(size, int(part[2] or size) + 1)
            if start < end:
                status, headers["Content-Range"] = HTTPStatus.PARTIAL_CONTENT, f"bytes {start}-{end - 1}/{size}"
            else:
                start, end = 0, size
        self._send(status, {**headers, "Content-Length": str(end - start)})
        if with_content:
            self.wfile.write(file.content[start:end])

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        content = f"{reason}\n".encode()
        self._send(status, {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content))})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()


def _is_own(host: str) -> bool:
    """Return True if a Host header names this machine; the port may be another, through a tunnel."""
    name, colon, port = host.partition(":")
    return name.lower() in HOSTS and (not colon or port.isdecimal())
