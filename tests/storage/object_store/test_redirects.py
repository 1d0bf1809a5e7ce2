"""Redirects are not followed from https to http, nor from a server on this machine to another host."""

import datetime
import ipaddress
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import obstore.store
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.errors import StorageError
from penstock.storage.object_store import remote_file
from penstock.storage.object_store.remote_file import read_object
from penstock.storage.object_store.retry import RetryPolicy


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch):
    monkeypatch.setattr(
        remote_file, "DEFAULT_RETRY_POLICY", RetryPolicy(budget_s=0.05, first_pause_s=0.01, stall_s=5.0)
    )


class _Server(ThreadingHTTPServer):
    def __init__(self, location=None):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.location = location
        self.paths = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.paths.append(self.path)
        if self.server.location is not None:
            self.send_response(302)
            self.send_header("Location", self.server.location)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206)
        for name, value in (("Content-Length", "4"), ("Content-Range", "bytes 0-3/4"), ("ETag", '"x"')):
            self.send_header(name, value)
        self.send_header("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, format, *args):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(location=None):
        servers.append(_Server(location))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def trusted(tmp_path, monkeypatch):
    """An SSL context with a certificate for this machine that obstore is configured to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "pem").write_bytes(private + pem)
    original = obstore.store.HTTPStore

    def make(location, *, client_options, **settings):
        return original(location, client_options={**client_options, "root_certificate": pem}, **settings)

    monkeypatch.setattr(obstore.store, "HTTPStore", make)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pem")
    return context


def serve_encrypted(server, context):
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return f"https://localhost:{server.server_address[1]}"


def plain_url(server, host="127.0.0.1"):
    return f"http://{host}:{server.server_address[1]}"


def test_a_local_server_cannot_redirect_to_another_host(serve):
    target = serve()
    assert read_object(f"{plain_url(target)}/a.tar", 100) == b"data"
    sender = serve(f"{plain_url(target, 'localhost')}/secret.tar")  # another host name stands for another host
    with pytest.raises(StorageError):
        read_object(f"{plain_url(sender)}/a.tar", 100)
    assert len(sender.paths) >= 1
    assert target.paths == ["/a.tar"]


def test_an_https_server_is_read(serve, trusted):
    assert read_object(f"{serve_encrypted(serve(), trusted)}/a.tar", 100) == b"data"


def test_an_https_server_cannot_redirect_to_http(serve, trusted):
    target = serve()
    sender = serve(f"{plain_url(target)}/latest/meta-data/")
    with pytest.raises(StorageError):
        read_object(f"{serve_encrypted(sender, trusted)}/a.tar", 100)
    assert len(sender.paths) >= 1
    assert target.paths == []
