"""A sink that serves the numbers of a run to Prometheus, at http://127.0.0.1:PORT/metrics."""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

import numpy as np

from penstock.errors import SettingError
from penstock.recording.format import AnyLine, FetchLine, HopsLine, LoaderLine, StepLine, is_profiled_phase
from penstock.watcher.rank_files import rank_and_world
from penstock.watcher.sinks.async_sink import AsyncSink
from penstock.watcher.window import BatchWindows

Labels = tuple[tuple[str, str], ...]

METRICS = {
    "steps_total": ("counter", "Steps that the training loop has finished."),
    "samples_total": ("counter", "Samples in those steps."),
    "wait_seconds_total": ("counter", "Time that the training loop waited for batches."),
    "step_seconds_total": ("counter", "Time that the training loop worked on batches."),
    "phase_seconds_total": ("counter", "Step time by phase; a phase inside another one is counted in both."),
    "slow_batches_total": ("counter", "Batches with a wait far above what is usual for the run."),
    "ready_batches": ("gauge", "Batches that had arrived when the training loop last requested one."),
    "outstanding_batches": ("gauge", "Batches that workers had been given and the training loop had not taken."),
    "workers": ("gauge", "Worker processes of the loader."),
    "worker_awaited_seconds_total": ("counter", "Time that the training loop waited for batches of this worker."),
}
"""Name without the prefix "penstock_" → type and help text."""
SUMMARIES = {
    "batch_wait_seconds": "Wait for a batch; quantiles over the latest 256 batches.",
    "batch_step_seconds": "Work of the training loop on a batch; quantiles over the latest 256 batches.",
    "worker_batch_seconds": "Time of a worker for a batch; quantiles over its latest 256 batches.",
}
"""The same for metrics of type summary."""
QUANTILES = (0.5, 0.9, 0.99)
LATEST = 256
"""Values that the quantiles are computed from: a scrape every 15 s sees most batches of most trainings."""
REQUEST_TIMEOUT_S = 5.0
"""Seconds after which the connection of a silent client is closed."""


class Prometheus(AsyncSink):
    """A sink that serves sums, gauges and quantiles over HTTP, from its construction to the end of the run.

    Every series has the labels `loader` and `rank`, those of workers also `worker`. docs/grafana.json is a dashboard
    for them.

    Port 0 chooses a free port, which the attribute `port` gives. Each rank of a machine needs a port of its own. The
    host "" listens on all network interfaces.
    """

    line_types: ClassVar[tuple[type, ...]] = (LoaderLine, StepLine, HopsLine, FetchLine)

    def __init__(self, port: int, host: str = "127.0.0.1", *, slow_s: float | None = None) -> None:
        super().__init__()
        self._windows = BatchWindows(slow_s=slow_s)
        self._rank = ("rank", str(rank_and_world()[0]))
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in METRICS}
        self._summaries: dict[str, dict[Labels, _Summary]] = {name: {} for name in SUMMARIES}
        self._steps_since_profiled: Counter[int] = Counter()
        """Steps after the last profiled one, by loader; the next profiled step is counted for all of them."""
        self._lock = threading.Lock()
        try:
            self._server = _MetricsServer((host, port), self)
        except (OSError, OverflowError) as error:
            raise SettingError(
                f"cannot serve metrics on {host or '*'}:{port}: {error}", advice="Name a free port, or 0 for any"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="penstock-metrics", daemon=True).start()

    def handle(self, line: AnyLine) -> None:
        """Update the sums and gauges."""
        with self._lock:
            if isinstance(line, LoaderLine):
                self._windows.add_loader(line)
                self._set("workers", line.loader, self._windows.of(line.loader).workers)
            elif isinstance(line, HopsLine):
                self._set("workers", line.loader, line.workers)
                self._set("ready_batches", line.loader, line.ready)
            elif isinstance(line, StepLine):
                self._step(line)
            elif isinstance(line, FetchLine):
                self._observe("worker_batch_seconds", line.loader, line.fetch_s, ("worker", str(line.worker)))

    def finish(self) -> None:
        """Free the port, even if a forked worker still holds a copy of the socket."""
        self._server.shutdown()
        with suppress(OSError):
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def text(self) -> str:
        """Return all values in Prometheus' text format, version 0.0.4."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _step(self, step: StepLine) -> None:
        slow, _ = self._windows.of(step.loader).add(step)
        self._add("steps_total", step.loader, 1)
        self._add("samples_total", step.loader, step.samples or 0)
        self._add("wait_seconds_total", step.loader, step.wait_s)
        self._add("step_seconds_total", step.loader, step.step_s)
        self._add("slow_batches_total", step.loader, slow)
        self._observe("batch_wait_seconds", step.loader, step.wait_s)
        self._observe("batch_step_seconds", step.loader, step.step_s)
        if step.worker is not None and step.worker >= 0:
            self._add("worker_awaited_seconds_total", step.loader, step.wait_s, ("worker", str(step.worker)))
        self._steps_since_profiled[step.loader] += 1
        weight = self._steps_since_profiled.pop(step.loader) if step.profiled else 0
        for phase, seconds in step.phases.items():
            weighted_s = seconds * weight if is_profiled_phase(phase) else seconds
            self._add("phase_seconds_total", step.loader, weighted_s, ("phase", phase))
        if step.ready is not None:
            self._set("ready_batches", step.loader, step.ready)
        if step.outstanding is not None:
            self._set("outstanding_batches", step.loader, step.outstanding)

    def _add(self, metric: str, loader: int, value: float, *labels: tuple[str, str]) -> None:
        values, key = self._values[metric], (*self._labels(loader), *labels)
        values[key] = values.get(key, 0.0) + value

    def _set(self, metric: str, loader: int, value: float) -> None:
        self._values[metric][self._labels(loader)] = value

    def _observe(self, metric: str, loader: int, value: float, *labels: tuple[str, str]) -> None:
        self._summaries[metric].setdefault((*self._labels(loader), *labels), _Summary()).add(value)

    def _labels(self, loader: int) -> Labels:
        return ("loader", self._windows.of(loader).name or f"loader{loader}"), self._rank

    def _lines(self) -> Iterator[str]:
        for metric, (kind, help_) in METRICS.items():
            yield f"# HELP penstock_{metric} {help_}"
            yield f"# TYPE penstock_{metric} {kind}"
            for labels, value in self._values[metric].items():
                yield _sample(metric, labels, value)
        for metric, help_ in SUMMARIES.items():
            yield f"# HELP penstock_{metric} {help_}"
            yield f"# TYPE penstock_{metric} summary"
            for labels, summary in self._summaries[metric].items():
                for quantile, value in zip(QUANTILES, summary.quantiles(), strict=True):
                    yield _sample(metric, (*labels, ("quantile", str(quantile))), value)
                yield _sample(f"{metric}_sum", labels, summary.sum)
                yield _sample(f"{metric}_count", labels, summary.count)


class _Summary:
    """The sum and the number of some values, and the latest of them."""

    def __init__(self) -> None:
        self.sum = 0.0
        self.count = 0
        self._latest: deque[float] = deque(maxlen=LATEST)

    def add(self, value: float) -> None:
        """Count a value."""
        self.sum += value
        self.count += 1
        self._latest.append(value)

    def quantiles(self) -> list[float]:
        """Return the quantiles of the latest values, in the order of QUANTILES."""
        return [float(value) for value in np.quantile(self._latest, QUANTILES)]


def _sample(metric: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{name}="{_escape(text)}"' for name, text in labels)
    return f"penstock_{metric}{{{pairs}}} {value!r}"


class _MetricsServer(socketserver.ThreadingTCPServer):
    """An HTTP server. `http.server.HTTPServer` is not used: it makes a DNS query before it listens."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = sys.platform != "win32"  # on Windows it would let two servers listen on one port

    def __init__(self, address: tuple[str, int], metrics: Prometheus) -> None:
        self.metrics = metrics
        super().__init__(address, _MetricsHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client may close its connection at any time."""


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _MetricsServer

    def do_GET(self) -> None:
        """Answer requests for /metrics; any other path is not found."""
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
        """Print nothing: requests do not belong in the output of the training."""


def _escape(text: str) -> str:
    """Escape the value of a label."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
