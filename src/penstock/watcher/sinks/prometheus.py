"""An endpoint for Prometheus to scrape: http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

from penstock.errors import SettingError
from penstock.recording.format import AnyLine, HopsLine, LoaderLine, StepLine, is_profiled_phase
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.window import BatchWindows

Labels = tuple[tuple[str, str], ...]

METRICS = {
    "steps_total": ("counter", "Batches the training loop has finished with."),
    "samples_total": ("counter", "Samples in them."),
    "wait_seconds_total": ("counter", "Time the loop waited for batches."),
    "step_seconds_total": ("counter", "Time the loop worked on them."),
    "phase_seconds_total": ("counter", "Of it, by phase; a phase inside another is counted in both."),
    "slow_batches_total": ("counter", "Batches waited for far longer than is usual for the run."),
    "ready_batches": ("gauge", "Batches that had arrived when the loop last asked."),
    "outstanding_batches": ("gauge", "Batches that workers had been asked for by then."),
    "workers": ("gauge", "Worker processes of the loader."),
}
REQUEST_S = 5.0
"""A client that says nothing for so long is hung up on."""


class Prometheus(AsyncSink):
    """Serves from its making to the end of the run.

    Port 0 takes a free one, told by `port`; ranks of one machine need one each. Host "" listens to the whole network.
    """

    wants: ClassVar[tuple[type, ...]] = (LoaderLine, StepLine, HopsLine)

    def __init__(self, port: int, host: str = "127.0.0.1", *, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = BatchWindows(slow_s=slow_s)
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        self._unlooked: Counter[int] = Counter()
        """By loader: steps since the last one whose phases were looked at, which the next one speaks for."""
        self._lock = threading.Lock()
        try:
            self._server = _MetricsServer((host, port), self)
        except (OSError, OverflowError) as error:
            raise SettingError(
                f"cannot serve metrics on {host or '*'}:{port}: {error}", advice="Name a free port, or 0 for any"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="penstock-metrics", daemon=True).start()

    def take(self, line: AnyLine) -> None:
        """Sums for Prometheus to take the difference of."""
        with self._lock:
            if isinstance(line, LoaderLine):
                self._windows.meet(line)
                self._set("workers", line.loader, self._windows.of(line.loader).workers)
            elif isinstance(line, HopsLine):
                self._set("workers", line.loader, line.workers)
                self._set("ready_batches", line.loader, line.ready)
            elif isinstance(line, StepLine):
                self._step(line)

    def end(self) -> None:
        """Free the port, also where a worker forked in the meantime still holds a copy of the socket."""
        self._server.shutdown()
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def text(self) -> str:
        """All values in the text format, version 0.0.4."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _step(self, step: StepLine) -> None:
        slow, _ = self._windows.of(step.loader).add(step)
        self._add("steps_total", step.loader, 1)
        self._add("samples_total", step.loader, step.samples or 0)
        self._add("wait_seconds_total", step.loader, step.wait_s)
        self._add("step_seconds_total", step.loader, step.step_s)
        self._add("slow_batches_total", step.loader, slow)
        self._unlooked[step.loader] += 1
        times = self._unlooked.pop(step.loader) if step.profiled else 0
        for phase, seconds in step.phases.items():
            spoken_s = seconds * times if is_profiled_phase(phase) else seconds
            self._add("phase_seconds_total", step.loader, spoken_s, ("phase", phase))
        if step.ready is not None:
            self._set("ready_batches", step.loader, step.ready)
        if step.outstanding is not None:
            self._set("outstanding_batches", step.loader, step.outstanding)

    def _add(self, metric: str, loader: int, value: float, *labels: tuple[str, str]) -> None:
        values, key = self._values[metric], (self._label(loader), *labels)
        values[key] = values.get(key, 0.0) + value

    def _set(self, metric: str, loader: int, value: float) -> None:
        self._values[metric][(self._label(loader),)] = value

    def _label(self, loader: int) -> tuple[str, str]:
        return "loader", self._windows.of(loader).name or f"loader{loader}"

    def _lines(self) -> Iterator[str]:
        for metric, (kind, help_) in METRICS.items():
            yield f"# HELP penstock_{metric} {help_}"
            yield f"# TYPE penstock_{metric} {kind}"
            for labels, value in self._values[metric].items():
                inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
                yield f"penstock_{metric}{{{inside}}} {value!r}"


class _MetricsServer(socketserver.ThreadingTCPServer):
    """Not http.server's own, which asks the name service for its name before it listens."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = sys.platform != "win32"  # there it would let two listen on one port

    def __init__(self, address: tuple[str, int], metrics: Prometheus) -> None:
        self.metrics = metrics
        super().__init__(address, _MetricsHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is not news."""


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _MetricsServer

    def do_GET(self) -> None:
        """/metrics, and nothing else."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.metrics.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The training's output is not an access log."""


def _escaped(text: str) -> str:
    """A label's value."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
