"""Real servers on this machine: one that takes HTTP posts, and one that speaks enough SMTP to take a mail."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import socket
import ssl
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self


@dataclass
class Posted:
    path: str
    headers: dict[str, str]
    document: Any


class Webhook:
    """Answers every post with `status` and `answer`. `with Webhook(…) as server: server.address`."""

    def __init__(self, answer: bytes = b'{"errcode":0,"errmsg":"ok"}', status: int = 200, headers: dict[str, str] | None = None):
        self.posted: list[Posted] = []
        self._answer = answer
        self._status = status
        self._headers = headers or {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.posted.append(Posted(self.path, dict(self.headers.items()), document))
                self.send_response(outer._status)
                for name, value in outer._headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(outer._answer)))
                self.end_headers()
                self.wfile.write(outer._answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Silent:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class Dripping:
    """Takes connections, says `begin`, and then `drip` again and again, at intervals that are too short for a time-out."""

    def __init__(self, begin: bytes, drip: bytes) -> None:
        self._begin = begin
        self._drip = drip
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # nobody came, or who came has left
            connection, _ = self._socket.accept()
            with connection:
                connection.sendall(self._begin)
                while not self._ended.wait(0.01):
                    connection.sendall(self._drip)


@dataclass
class Mail:
    sender: str
    recipients: list[str]
    data: bytes
    secure: bool
    login: str | None


@dataclass
class MailServer:
    """An SMTP server. `certificate`: TLS from the first byte, or, with `starttls`, offered. Recipients in `refused` are."""

    certificate: Path | None = None
    starttls: bool = False
    password: str | None = None
    refused: tuple[str, ...] = ()
    mails: list[Mail] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closing = True
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join()
        self._socket.close()

    _closing = False

    def _secure(self, connection: socket.socket) -> socket.socket:
        assert self.certificate is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate)
        return context.wrap_socket(connection, server_side=True)

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            if self._closing:
                connection.close()
                return
            connection.settimeout(20)
            try:
                if self.certificate is not None and not self.starttls:
                    connection = self._secure(connection)
                self._talk(connection)
            except (OSError, EOFError):
                pass  # the client would have none of the certificate, or has left
            finally:
                connection.close()

    def _talk(self, connection: socket.socket, *, greet: bool = True) -> None:
        secure = isinstance(connection, ssl.SSLSocket)
        lines = connection.makefile("rb")
        sender, recipients, login = "", [], None

        def say(*answers: str) -> None:
            connection.sendall("".join(f"{answer}\r\n" for answer in answers).encode())

        if greet:
            say("220 test")
        while True:
            line = lines.readline()
            if not line:
                raise EOFError
            command = line.decode().strip()
            verb = command.upper()
            if verb.startswith("EHLO"):
                offers = ["AUTH PLAIN"] if self.password is not None else []
                if self.starttls and not secure:
                    offers = ["STARTTLS"]
                say("250-test", *(f"250-{offer}" for offer in offers), "250 HELP")
            elif verb == "STARTTLS":
                say("220 go on")
                with self._secure(connection) as secured:
                    return self._talk(secured, greet=False)
            elif verb.startswith("AUTH PLAIN"):
                _, user, password = base64.b64decode(command.split()[2]).decode().split("\0")
                if password == self.password:
                    login = user
                    say("235 welcome")
                else:
                    say(f"535 wrong password {password}")
            elif verb.startswith("MAIL FROM:"):
                sender = command[10:].split()[0].strip("<>")
                say("250 ok")
            elif verb.startswith("RCPT TO:"):
                recipient = command[8:].split()[0].strip("<>")
                if recipient in self.refused:
                    say("550 nobody here")
                else:
                    recipients.append(recipient)
                    say("250 ok")
            elif verb == "DATA":
                say("354 go on")
                data = b""
                while (row := lines.readline()) != b".\r\n":
                    data += row[1:] if row.startswith(b"..") else row
                self.mails.append(Mail(sender, recipients, data, secure, login))
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say("250 ok")


def make_certificate(directory: Path) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    path = directory / "certificate.pem"
    key = directory / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command = ["openssl", "req", *kind, *subject, "-keyout", str(key), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path
