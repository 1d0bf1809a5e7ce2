"""Azurite, Microsoft's emulator of Azure's blob storage, on this machine: a Node program, `npm install azurite`.

The program is searched on the PATH, and in the folder that PENSTOCK_AZURITE names
(that of `npm install --prefix FOLDER azurite`).
"""

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from email.utils import formatdate
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of every emulator, as printed in Microsoft's documentation; it gives access to nothing else."""
VERSION = "2023-11-03"
READY_TIMEOUT_S = 30


def program():
    """Return the command, or None if it is not installed."""
    folder = os.environ.get("PENSTOCK_AZURITE")
    path = Path(folder, "node_modules", ".bin", "azurite-blob") if folder else None
    return str(path) if path is not None and path.exists() else shutil.which("azurite-blob")


class Azurite:
    """A server that runs within a `with` block and holds its objects in memory."""

    def __enter__(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [program(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--silent"]
        self._process = subprocess.Popen([*command, "--skipApiVersionCheck", "--disableTelemetry"])
        self._wait(port)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait(10)

    def _wait(self, port):
        end = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, "azurite ended at once"
                assert time.monotonic() < end, f"azurite was not ready after {READY_TIMEOUT_S} s"
                time.sleep(0.05)


@dataclass(frozen=True)
class Container:
    """A container that tests access directly, with the account's key."""

    server: str
    name: str

    def url(self, key=""):
        return f"az://{self.name}/{key}"

    def create(self):
        self._request("PUT", "", {"restype": "container"})

    def put(self, key, data):
        """Upload an object and return its ETag."""
        return self._request("PUT", key, body=data, headers={"x-ms-blob-type": "BlockBlob"}).getheader("ETag")

    def names(self):
        listing = self._request("GET", "", {"comp": "list", "restype": "container"}).content.decode()
        return [each.partition("</Name>")[0] for each in listing.split("<Name>")[1:]]

    def _request(self, method, key, query=None, body=b"", headers=None):
        path = f"/{ACCOUNT}/{self.name}" + (f"/{key}" if key else "")
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": VERSION, **(headers or {})}
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{_signature(method, path, query or {}, len(body), headers)}"
        query_text = "&".join(f"{name}={value}" for name, value in (query or {}).items())
        connection = HTTPConnection(urlsplit(self.server).netloc, timeout=20)
        try:
            url = f"{path}?{query_text}" if query_text else path
            connection.request(method, url, body=body or None, headers=headers)
            response = connection.getresponse()
            response.content = response.read()
        finally:
            connection.close()
        assert response.status < 300, f"{method} {path}: {response.status} {response.content[:300]!r}"
        return response


def _signature(method, path, query, length, headers):
    """Sign a request: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key"""
    plain = [method, "", "", str(length or ""), *[""] * 8]
    named = [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
    resource = [f"/{ACCOUNT}{path}", *(f"{name}:{query[name]}" for name in sorted(query))]
    text = "\n".join([*plain, *named, *resource])
    return base64.b64encode(hmac.digest(base64.b64decode(KEY), text.encode(), hashlib.sha256)).decode()
