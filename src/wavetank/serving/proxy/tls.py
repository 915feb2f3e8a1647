"""TLS of the router: to backends, with authorities and certificates of one's own; to clients, from files that change.

Nothing here ever accepts less than TLS 1.2, an unverified backend, or a certificate that does not fit its key.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from wavetank.errors import BadFileError


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
    try:
        context = ssl.create_default_context(cafile=str(Path(ca_file).expanduser()) if ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise BadFileError(f"The authorities cannot be read: {_reason(error)}.", where=ca_file) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if cert_file:
        load_chain(context, cert_file, key_file)
    return context


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
