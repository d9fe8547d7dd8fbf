"""The certificate of all doors: read once, checked whole, swapped while connections go on.

HTTP and Kafka take the context of each new handshake from here. gRPC fixes the certificate of a
listening socket when that is made, so the Flight door is opened again on its port, and the old one
ends with its last call (`Service`). A connection keeps the certificate that it began with.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from lamina.errors import InvalidRequest
from lamina.server.setting_table import ServerSettings
from lamina.storage.files import LocalFiles
from lamina.storage.paths import absolute


@dataclass(frozen=True, slots=True)
class Certificate:
    """A PEM chain with its key, as bytes for Flight and as a context for the others."""

    chain: bytes
    key: bytes
    context: ssl.SSLContext

    @property
    def pair(self) -> tuple[bytes, bytes]:
        """What Flight takes."""
        return self.chain, self.key

    def is_same_as(self, other: Certificate | None) -> bool:
        """Returns whether it is the same chain and key."""
        return other is not None and self.pair == other.pair


def load(settings: ServerSettings) -> Certificate | None:
    """Reads and checks the certificate of settings; None where there is none."""
    paths = (settings.tls_certificate, settings.tls_key)
    if not any(paths):
        return None
    if not all(paths):
        raise InvalidRequest("tls.certificate and tls.key are set together or not at all")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        chain, key = (LocalFiles().read(absolute(path)) for path in paths)
        context.load_cert_chain(absolute(paths[0]), absolute(paths[1]), _no_password)
        again = tuple(LocalFiles().read(absolute(path)) for path in paths)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidRequest(
            f"tls.certificate {paths[0]} and tls.key {paths[1]} cannot be used: {error}"
        ) from error
    if again != (chain, key):
        raise InvalidRequest(f"{paths[0]} and {paths[1]} were changed while they were read")
    return Certificate(chain, key, context)


def _no_password() -> str:
    raise InvalidRequest("tls.key is encrypted; a server needs it in clear")


def following(current: ssl.SSLContext, newest: list[ssl.SSLContext]) -> ssl.SSLContext:
    """Has each handshake of a context use the newest one; `newest` holds that alone."""

    def choose(shaking: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        shaking.context = newest[0]

    current.sni_callback = choose  # called for every handshake, with or without a name
    return current
