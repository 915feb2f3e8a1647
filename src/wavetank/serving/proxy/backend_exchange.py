"""One HTTP/1.1 exchange with a backend, as a state machine without input or output.

Bytes go in with :meth:`BackendExchange.feed`, pieces of the answer's body come out with :meth:`BackendExchange.take`.
The machine is made anew for every request, so that nothing of one answer can be left for the next, and it alone says
whether the connection that carried it may carry another (:meth:`BackendExchange.finished`).

Heads, chunked coding and trailers are parsed by llhttp.  Around it stand a limit on every size, the rules that decide
where an answer ends, and the certainty that it ended exactly where the last byte came.

Source: RFC 9112, "HTTP/1.1", sections 2 to 7; llhttp, the parser of Node.js, through httptools.

Differs from the source:

1. Stricter: a length that is given twice or with a transfer coding, another transfer coding than ``chunked``, a folded
   header line, a bare line end, or a switch of protocols is refused.
2. An answer that ends with the connection is taken only where it announces that (``Connection: close`` or HTTP/1.0).
3. Bytes behind the end of an answer, empty lines included, end the use of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from wavetank.errors import missing_extra

try:
    from httptools import HttpParserError, HttpResponseParser
except ImportError:
    raise missing_extra("httptools", "serving", needed_for="The router") from None

# A head or a trailer that is longer is refused; so is a line of chunked coding.
MAX_HEAD_BYTES = 65_536
MAX_TRAILER_BYTES = 8_192
MAX_INTERIM = 8

_BLANK = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")
_DIGITS = re.compile(rb"[0-9]{1,18}")

HEAD, LENGTH, CHUNKED, UNTIL_CLOSE, DONE, FAILED = range(6)


class BackendError(Exception):
    """A backend that gave no complete answer.

    Attributes
    ----------
    reason : str
        ``connect``, ``died``, ``protocol``, ``body``, ``first_byte``, ``idle`` or ``too_long``.
    untouched : bool
        Whether the request was never sent, or its connection died before a byte of an answer came, though not before
        the backend can have worked on it.
    """

    def __init__(self, reason: str, text: str, *, untouched: bool = False) -> None:
        super().__init__(text)
        self.reason = reason
        self.untouched = untouched


class _Message:
    """What llhttp reports of one message."""

    __slots__ = ("begun", "ended", "fields", "in_body", "pieces", "trailer_bytes")

    def __init__(self) -> None:
        self.begun = 0
        self.ended = False
        self.in_body = False
        self.fields: list[tuple[bytes, bytes]] = []
        self.pieces: list[bytes] = []
        self.trailer_bytes = 0

    def on_message_begin(self) -> None:
        self.begun += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.in_body:
            self.trailer_bytes += len(name) + len(value) + 4
        else:
            self.fields.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.in_body = True

    def on_body(self, data: bytes) -> None:
        self.pieces.append(data)

    def on_message_complete(self) -> None:
        self.ended = True


class BackendExchange:
    """The answer to one request.

    Parameters
    ----------
    max_bytes : int
        Longest answer, head and framing included.
    method : bytes
        Of the request; an answer to HEAD has no body.

    Attributes
    ----------
    status : int
        Of the answer; 0 before its head has come.
    headers : list of (bytes, bytes)
        Names in lower case, in the order received.
    complete : bool
        Whether the answer has come to its end.
    error : BackendError or None
        Why it never will; what came before can still be taken.
    received_bytes : int
        Of the answer, head, interim heads and framing included.
    body_seen : bool
        Whether a byte of the body has come.
    waiting_bytes : int
        Of the body, not yet taken.
    surplus : bool
        Whether bytes came behind the end of the answer.
    """

    def __init__(self, max_bytes: int, method: bytes = b"POST") -> None:
        self._max_bytes = max_bytes
        self._head_only = method == b"HEAD"
        self._state = HEAD
        self._buffer = b""
        self._tail = b""
        self._left = 0
        self._interim = 0
        self._framing_bytes = 0
        # Made anew with every head.
        self._message: _Message
        self._parser: HttpResponseParser
        self._pieces: list[bytes] = []
        self._keep = True
        self._end_taken = False
        self._until_close = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.error: BackendError | None = None
        self.received_bytes = 0
        self.body_seen = False
        self.waiting_bytes = 0
        self.surplus = False

    # -- what a reader asks --------------------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """Whether the answer has come to its end."""
        return self._state == DONE

    @property
    def over(self) -> bool:
        """Whether nothing more is expected: the answer is complete, or failed."""
        return self._state >= DONE

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the end of the connection marks the end of the answer."""
        return self._until_close

    @property
    def ends_connection(self) -> bool:
        """Whether the connection ends with this answer, by what its head announced or what happened since."""
        return not self._keep

    def finished(self) -> bool:
        """Say whether the connection may carry another exchange, as far as this one knows.

        Its answer is complete, its reader has come to the end, neither side announced to close, and not one byte came
        behind the end.
        """
        return self._state == DONE and self._keep and self._end_taken and not self._pieces and not self.surplus

    def take(self) -> bytes:
        """Return the bytes of the body that have come since; empty where there are none.

        The first empty return behind a complete answer is its end, and is taken note of.
        """
        pieces = self._pieces
        if not pieces:
            if self._state == DONE:
                self._end_taken = True
            return b""
        self._pieces = []
        self.waiting_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # -- what happens to it --------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take bytes that the backend sent; what is wrong with them becomes :attr:`error`."""
        self.received_bytes += len(data)
        if self._state == DONE:
            self.surplus = self.surplus or bool(data)
            return
        if self._state == FAILED:
            return
        if self.received_bytes > self._max_bytes:
            self.fail("too_long", f"The answer is longer than {self._max_bytes} bytes.")
            return
        try:
            self._parse(data)
        except (ValueError, HttpParserError) as error:
            self.fail("protocol", f"The backend's answer is not valid HTTP: {error}")

    def end_of_connection(self, clean: bool) -> None:
        """Take note that no more bytes will come.

        Parameters
        ----------
        clean : bool
            Whether the backend closed the connection in order, rather than its being reset.
        """
        self._keep = False
        if self._state == UNTIL_CLOSE and clean:
            self._state = DONE
        elif self._state < DONE:
            self.fail("died", "The backend closed the connection before its answer was complete.")

    def fail(self, reason: str, text: str) -> None:
        """Give the answer up; a complete one stays complete, but the connection is not used again."""
        self._keep = False
        if self._state < DONE:
            self._state = FAILED
            self.error = BackendError(reason, text, untouched=reason == "died" and not self.received_bytes)
            self._buffer = b""

    # ------------------------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        if self._state == HEAD:
            data = self._read_heads(data)
            if not data:
                return
        if self._state == LENGTH:
            self._push(data[: self._left])
            surplus = len(data) - self._left
            self._left = max(-surplus, 0)
            if surplus >= 0:
                self._done(surplus)
        elif self._state == CHUNKED:
            self._read_chunks(data)
        elif self._state == UNTIL_CLOSE:
            self._push(data)
        else:
            self.surplus = True

    def _read_heads(self, data: bytes) -> bytes:
        """Read heads up to the answer's own; returns the bytes behind it, nothing while it is incomplete."""
        data = self._buffer + data if self._buffer else data
        self._buffer = b""
        while self._state == HEAD:
            end = data.find(_BLANK)
            if end > MAX_HEAD_BYTES or (end < 0 and len(data) > MAX_HEAD_BYTES):
                raise ValueError(f"its head is longer than {MAX_HEAD_BYTES} bytes.")
            if end < 0:
                if data.count(b"\n") != data.count(b"\r\n"):
                    raise ValueError("its head holds a bare line end.")
                self._buffer = data
                return b""
            head, data = data[: end + 4], data[end + 4 :]
            self._read_head(head)
            if not data:
                break
        return data

    def _read_head(self, head: bytes) -> None:
        breaks = head.count(b"\r\n")
        if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
            raise ValueError("its head holds a bare line end or a null byte.")
        match = _STATUS.match(head)
        if match is None:
            raise ValueError("it does not begin with a status line.")
        status, old = int(match[2]), match[1] == b"0"
        if status == 101:
            raise ValueError("it switches to another protocol.")
        message = self._message = _Message()
        self._parser = HttpResponseParser(message)
        self._parser.feed_data(head)
        if status < 200:
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise ValueError("it has interim heads only.")
            return
        lengths = [value for name, value in message.fields if name == b"content-length"]
        codings = [value.lower() for name, value in message.fields if name == b"transfer-encoding"]
        close = old or any(name == b"connection" and b"close" in value.lower() for name, value in message.fields)
        if len(lengths) > 1 or (lengths and _DIGITS.fullmatch(lengths[0]) is None):
            raise ValueError("its length is not one number.")
        if codings not in ([], [b"chunked"]):
            raise ValueError("it has another transfer coding than chunked.")
        if codings and (lengths or old):
            raise ValueError("it has both a length and a transfer coding.")
        bodiless = self._head_only or status in (204, 304)
        if not (codings or lengths or close or bodiless):
            raise ValueError("it has no length and does not announce that it ends with the connection.")
        self.status, self.headers = status, message.fields
        self._keep = not close
        if bodiless or lengths == [b"0"]:
            self._state = DONE
        elif codings:
            self._state = CHUNKED
        elif lengths:
            self._left = int(lengths[0])
            self._state = LENGTH if self._left else DONE
        else:
            self._state = UNTIL_CLOSE
            self._until_close = True

    def _read_chunks(self, data: bytes) -> None:
        # llhttp passes over empty lines behind a message and does not say where the message ended.  Chunked coding
        # ends with an empty line and nowhere else, so the bytes are given to it up to each one that might be the end.
        at = 0
        for end in (*self._blanks(data), len(data)):
            piece = data[at:end] if at or end < len(data) else data
            if piece:
                self._feed_chunks(piece)
            if self._message.ended:
                self._done(len(data) - end)
                return
            at = end
        self._tail = (self._tail + data)[-3:] if len(data) < 3 else data[-3:]

    def _blanks(self, data: bytes) -> Iterator[int]:
        """Return where in these bytes empty lines end, in order; one may have begun in the bytes before."""
        tail = self._tail
        edge = tail + data[:3]
        for at in range(len(tail)):
            if edge[at : at + 4] == _BLANK:
                yield at + 4 - len(tail)
        at = data.find(_BLANK)
        while at >= 0:
            yield at + 4
            at = data.find(_BLANK, at + 1)

    def _feed_chunks(self, piece: bytes) -> None:
        message = self._message
        self._parser.feed_data(piece)
        if message.begun > 1:
            # Never seen: it would mean that the end was somewhere else than at an empty line.
            raise ValueError("it ends where no answer can end.")
        if message.pieces:
            for each in message.pieces:
                self._push(each)
            message.pieces = []
            self._framing_bytes = 0
        else:
            self._framing_bytes += len(piece)
        if max(self._framing_bytes, message.trailer_bytes) > MAX_TRAILER_BYTES:
            raise ValueError(f"its trailer, or a line of its coding, is longer than {MAX_TRAILER_BYTES} bytes.")

    def _push(self, piece: bytes) -> None:
        if piece:
            self.body_seen = True
            self._pieces.append(piece)
            self.waiting_bytes += len(piece)

    def _done(self, surplus: int) -> None:
        self._state = DONE
        self.surplus = surplus > 0
