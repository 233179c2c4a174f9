"""Metrics of a run in Prometheus' text format, served on the loopback address while the run goes on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from starling.errors import UserError
from starling.runtime.status import HubStatus, RunStatus, WorkerStatus

ADDRESS = "127.0.0.1"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_WORKERS = (
    *("silent_seconds", "crashes", "lent", "env_steps", "steps_per_s", "busy", "wait_in", "wait_out", "weights"),
    *("bytes_in", "bytes_out", "publish_ms"),
)
_OF_HUBS = ("silent_seconds", "requests", "batches_ready", "batches_scored", "lent", "free")


class MetricsServer:
    """Answers `GET /metrics` with the newest row of metrics and the newest status.

    Raises:
        UserError: The port is in use.
    """

    def __init__(self, port: int, row: Callable[[], Mapping[str, Any]], status: Callable[[], RunStatus | None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "only /metrics is here")
                    return
                content = text_of(row(), status()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = _listen(port, Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def check_port(port: int) -> None:
    """Raise `UserError` if the port is in use."""
    _listen(port, BaseHTTPRequestHandler).server_close()


def _listen(port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((ADDRESS, port), handler)
    except OSError as error:
        raise UserError(f"log.prometheus={port}: {error.strerror}; choose another port, or 0 for a free one") from None


def text_of(row: Mapping[str, Any], status: RunStatus | None) -> str:
    """Format the last row as `starling_KEY`, and the status as `starling_worker_...` and `starling_hub_...`."""
    samples: dict[str, list[str]] = {}

    def add(name: str, labels: Mapping[str, str], value: object) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            words = ",".join(f'{key}="{_quoted(text)}"' for key, text in labels.items())
            samples.setdefault(name, []).append(f"{name}{{{words}}} {value}" if words else f"{name} {value}")

    for key, value in row.items():
        add(f"starling_{_name(key)}", {}, value)
    for hub, worker in _of_status(status):
        of_hub = {"rank": str(hub.rank)}
        if worker is None:
            for field in _OF_HUBS:
                add(f"starling_hub_{field}", of_hub, getattr(hub, field))
            continue
        labels = {**of_hub, "worker": worker.name, "kind": worker.kind, "node": worker.node or ""}
        add("starling_worker_up", labels, int(worker.state == "running"))
        for field in _OF_WORKERS:
            add(f"starling_worker_{field}", labels, getattr(worker, field))
    return "".join(f"# TYPE {name} gauge\n" + "".join(f"{line}\n" for line in lines) for name, lines in samples.items())


def _of_status(status: RunStatus | None) -> Iterator[tuple[HubStatus, WorkerStatus | None]]:
    for hub in [] if status is None else status.runtime.hubs:
        yield hub, None
        for worker in hub.workers:
            yield hub, worker


def _name(key: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
