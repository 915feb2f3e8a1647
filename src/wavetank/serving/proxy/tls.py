"""TLS of the router: to backends, with authorities and certificates of one's own; to clients, from files that change.

Nothing here ever accepts less than TLS 1.2, an unverified backend, or a certificate that does not fit its key.
"""

from __future__ import annotations

import datetime
import logging
import ssl
from pathlib import Path

from wavetank.errors import BadFileError, missing_extra

log = logging.getLogger("wavetank.router")

MOST_PEM_BYTES = 16_777_216
# An end that is nearer than this is logged.
_SOON = datetime.timedelta(days=14)


def backend_context(ca_file: str = "", cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return what is needed to connect to a backend.

    Parameters
    ----------
    ca_file : str
        Certificates of the authorities that count, and no others do then; by default the system's.
    cert_file, key_file : str
        What the router shows, where backends ask for a certificate.

    Raises
    ------
    BadFileError
        If a file is missing, no PEM, or the key does not fit.
    """
    for name in filter(None, (ca_file, cert_file, key_file)):
        _check_file(Path(name).expanduser())
    try:
        context = ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise BadFileError(f"The authorities cannot be read: {_reason(error)}.", where=ca_file) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if cert_file:
        load_chain(context, cert_file, key_file)
    return context


def _check_file(path: Path) -> None:
    """Refuse what the library would wait for, or read without an end."""
    if path.exists() and not path.is_file():
        raise BadFileError("This is no file of certificates or keys.", where=str(path))


class ServerCertificate:
    """The certificate that clients are shown; replaced files are taken over, damaged ones are not.

    Connections that are open keep what they were opened with.

    Parameters
    ----------
    cert_file, key_file : str
        PEM; the certificate's chain behind it.

    Attributes
    ----------
    context : SSLContext
        For the listener, for as long as it listens.

    Raises
    ------
    BadFileError
        If a file is missing or no PEM, the key does not fit, or the certificate is not valid today.
    """

    def __init__(self, cert_file: str, key_file: str) -> None:
        self._files = (Path(cert_file).expanduser(), Path(key_file).expanduser())
        self._seen = self._stamp()
        self._current = self._load()
        self.context = self._load()
        self.context.sni_callback = self._choose

    def look(self) -> bool:
        """Look whether the files were replaced; returns whether others are used from now on."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._current = self._load()
        except BadFileError as error:
            log.error("the certificate stays as it was: %s", " ".join(str(error).split()))
            return False
        log.warning("another certificate is shown from now on: %s", self._files[0])
        return True

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _stamp(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in self._files:
            try:
                state = path.stat()
                found += [state.st_mtime_ns, state.st_size, state.st_ino]
            except OSError:
                found.append(None)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        for path in self._files:
            _check_file(path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_alpn_protocols(["http/1.1"])
        load_chain(context, *map(str, self._files))
        self._check_dates()
        return context

    def _check_dates(self) -> None:
        try:
            from cryptography import x509
        except ImportError:
            raise missing_extra("cryptography", "serving", needed_for="TLS to clients") from None
        where = str(self._files[0])
        try:
            leaf = x509.load_pem_x509_certificates(self._files[0].read_bytes())[0]
            begin, end = leaf.not_valid_before_utc, leaf.not_valid_after_utc
        except (OSError, ValueError) as error:
            raise BadFileError(f"The certificate cannot be read: {error}", where=where) from None
        now = datetime.datetime.now(datetime.UTC)
        if now > end:
            raise BadFileError(
                "The certificate has expired.", given=f"valid until {end:%Y-%m-%d %H:%M} UTC", where=where
            )
        if now < begin:
            raise BadFileError(
                "The certificate is not valid yet.", given=f"valid from {begin:%Y-%m-%d %H:%M} UTC", where=where
            )
        if end - now < _SOON:
            log.warning("the certificate %s ends on %s UTC", where, f"{end:%Y-%m-%d %H:%M}")


def load_chain(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    """Load a certificate and its key.

    Parameters
    ----------
    context : SSLContext
    cert_file, key_file : str

    Raises
    ------
    BadFileError
        If a file is missing or no PEM, the key needs a passphrase, or does not fit.
    """
    where = f"{cert_file}, {key_file}"
    try:
        context.load_cert_chain(Path(cert_file).expanduser(), Path(key_file).expanduser(), password=_no_passphrase)
    except (OSError, ValueError) as error:
        raise BadFileError(f"Certificate and key cannot be used: {_reason(error)}.", where=where) from None


def _no_passphrase() -> str:
    # Nobody is there to type one; without this the library asks at the terminal.
    raise ValueError("the key has a passphrase")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return str(error.reason or "not PEM").replace("_", " ").lower()
    return str(getattr(error, "strerror", None) or error)
