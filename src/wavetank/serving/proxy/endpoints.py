"""The paths that the router serves, and what it reads of a request to each of them: the model, the length, streaming.

Every path is written out here; none is built from what a client sends, and an unknown one gets 404.  Bodies are
forwarded byte for byte, but for two cases: an alias is replaced by its model, and a key that may use some models only
has its JSON written anew, so that a field given twice cannot mean one model here and another one at the backend.

What would need a memory at one backend is refused: a stored answer (``previous_response_id``, ``background``) could
be read by everybody who shares the backend's key.

Source: the API references of OpenAI, Anthropic (messages), Cohere and Jina (rerank), and of vLLM (tokenize, score,
pooling, classify); RFC 7578 (multipart/form-data).

Differs from the source:

1. A form's parts must name themselves as browsers and HTTP libraries write it; other spellings that parsers disagree on
   are refused.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from wavetank.serving.proxy.asking import read_given
from wavetank.serving.proxy.prompt_size import BodyError, Prompt, read_prompt

ONE_MODEL = "/v1/models/"
MOST_PARTS = 64
_MOST_PART_HEAD_BYTES = 8_192


class Endpoint(NamedTuple):
    """How a path is served.

    Attributes
    ----------
    method : str
    kind : str
        ``completion``, ``json`` or ``form`` for what backends answer; ``own`` for what the router does.
    model_needed : bool
        Whether a request must name its model where backends serve several ones.
    light : bool
        Whether it costs a backend next to nothing, whatever its length.
    says : str
        In whose form errors are: ``openai``, ``messages`` or ``responses``.
    ends : tuple of bytes
        What the last event of a complete stream holds one of.
    generates : bool
        Whether tokens are generated, so that it belongs into a recording.
    """

    method: str = "POST"
    kind: str = "json"
    model_needed: bool = True
    light: bool = False
    says: str = "openai"
    ends: tuple[bytes, ...] = (b"[DONE]",)
    generates: bool = False

    def ended(self, tail: bytes) -> bool:
        """Say whether an event stream of which these are the last bytes ends with its last event.

        Within a text a mark says nothing: there it is on no line of its own, and its quotes are escaped.
        """
        last = tail.rstrip(b"\r\n")
        last = last[max(last.rfind(b"\n\n"), last.rfind(b"\n\r\n"), 0) :]
        for line in last.splitlines():
            name, _, value = line.partition(b":")
            if name in (b"event", b"data") and value.strip() in self.ends:
                return True
            if name == b"data" and any(each.group(1) in self.ends for each in _TYPE.finditer(value)):
                return True
        return False


_TYPE = re.compile(rb'"type"\s*:\s*"([a-z_.]{1,40})"')
_COMPLETION = Endpoint(kind="completion", generates=True)
_JSON = Endpoint()
_OPTIONAL = Endpoint(model_needed=False)
_LIGHT = Endpoint(model_needed=False, light=True)
_OWN = Endpoint(method="GET", kind="own")
_RESPONSES = Endpoint(
    says="responses",
    ends=(b"response.completed", b"response.incomplete", b"response.failed", b"[DONE]"),
    generates=True,
)
_MESSAGES = Endpoint(says="messages", ends=(b"message_stop",), generates=True)
_FORM = Endpoint(kind="form")

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": _COMPLETION,
    "/v1/completions": _COMPLETION,
    "/v1/embeddings": _JSON,
    "/v1/responses": _RESPONSES,
    "/v1/messages": _MESSAGES,
    "/v1/messages/count_tokens": _MESSAGES._replace(light=True, generates=False),
    "/v1/rerank": _OPTIONAL,
    "/v2/rerank": _OPTIONAL,
    "/rerank": _OPTIONAL,
    "/v1/score": _OPTIONAL,
    "/score": _OPTIONAL,
    "/pooling": _OPTIONAL,
    "/classify": _OPTIONAL,
    "/tokenize": _LIGHT,
    "/detokenize": _LIGHT,
    "/v1/audio/transcriptions": _FORM,
    "/v1/audio/translations": _FORM,
    "/v1/audio/speech": _JSON,
    "/v1/models": _OWN,
    ONE_MODEL: _OWN,
    "/health": _OWN,
    "/metrics": _OWN,
}


def path_of(raw_path: str) -> str:
    """Return a path as :data:`ENDPOINTS` has it; the name of one model does not belong to it."""
    path = raw_path.partition("?")[0]
    if path.startswith(ONE_MODEL):
        return ONE_MODEL if path != ONE_MODEL else ""
    return path


# What a prompt is made of, in the order in which templates put it.
_TEXT = ("instructions", "system", "tools", "messages", "prompt", "input", "query", "documents", "text_1", "text_2",
         "queries", "items", "tokens")  # fmt: skip
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of a JSON object, undecoded; of one that is given twice the last.

    Raises
    ------
    BodyError
        If the body is no JSON object.
    """
    try:
        return _fields.decode(body)
    except msgspec.ValidationError:
        raise BodyError("The body is not a JSON object.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        raise BodyError(f"The body is not valid JSON: {'it is nested too deeply' if deep else error}") from None


_CHARSET = re.compile(r"charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)


def read_request(endpoint: Endpoint, body: bytes, content_type: str) -> Prompt:
    """Read what a router needs to know of a request's body.

    Raises
    ------
    BodyError
        If the body is not what the endpoint takes, or asks for what no backend may do behind a router.
    """
    if endpoint.kind == "form":
        return Prompt(read_form(body, content_type).model, False, [], len(body))
    charset = None if content_type == "application/json" else _CHARSET.search(content_type)
    if charset is not None and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise BodyError(f"The body's text must be UTF-8, not {charset[1][:40]!r}.")
    if endpoint.kind == "completion":
        return read_prompt(body)
    fields = read_fields(body)
    if endpoint.says == "responses":
        for name in ("previous_response_id", "background", "conversation"):
            if bytes(fields.get(name, b"null")) not in (b"null", b"false"):
                raise BodyError(f"{name!r} needs a memory at one backend; a router has several.")
    model, stream = _decoded(fields, "model"), _decoded(fields, "stream") is True
    if not isinstance(model, str | None):
        raise BodyError("The field 'model' must be text.")
    if endpoint.light:
        return Prompt(model, stream, [], 1, ids=True)
    for name in ("input", "prompt"):
        raw = bytes(fields.get(name, b""))
        if raw.startswith(b"[") and raw[1:].lstrip(b" \t\r\n[")[:1].isdigit():
            ids = _flat(msgspec.json.decode(raw))
            if ids:
                return Prompt(model, stream, ids, len(ids), ids=True, given=read_given(fields))
    raws = [bytes(fields[name]) for name in _TEXT if name in fields]
    parts = [raw.decode("utf-8", "replace") for raw in raws]
    chat, given = "messages" in fields, read_given(fields)
    return Prompt(model, stream, parts, sum(map(len, raws)), chat=chat, given=given)


def _decoded(fields: dict[str, msgspec.Raw], name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _flat(found: list[Any]) -> list[int]:
    rows = found if all(isinstance(row, list) for row in found) else [found]
    flat = [each for row in rows for each in row]
    return flat if all(type(each) is int and -(2**63) <= each < 2**63 for each in flat) else []


def with_model(body: bytes, model: str) -> bytes:
    """Return a JSON body that names a model, once; all other values are as they were, byte for byte.

    Parameters
    ----------
    body : bytes
        A JSON object.
    model : str

    Raises
    ------
    BodyError
        If a field is spelt like ``model`` but for its case: some servers would take it for the model.
    """
    fields = read_fields(body)
    for name in fields:
        if name != "model" and name.casefold() == "model":
            raise BodyError(f"The field {name!r} can be mistaken for 'model'.")
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


class Form(NamedTuple):
    """What is read of a form: its model, and where its bytes are."""

    model: str
    start: int
    end: int

    def with_model(self, body: bytes, model: str) -> bytes:
        """Return the form with another model."""
        return body[: self.start] + model.encode() + body[self.end :]


_BOUNDARY = re.compile(
    r"multipart/form-data\s*;\s*boundary=(?:\"([^\"\r\n]{1,70})\"|([^\s;\",]{1,70}))\s*", re.IGNORECASE
)
_BOUNDARY_TEXT = re.compile(r"[0-9A-Za-z'()+_,./:=?-]{1,70}")
_NAMED = re.compile(rb"form-data; name=\"([^\"\\\r\n\0]{1,200})\"(?:; filename=\"[^\"\\\r\n\0]{0,1000}\")?")
_MODEL_NAME = re.compile(rb"[\x21-\x7e]{1,500}")


def read_form(body: bytes, content_type: str) -> Form:
    """Find the model in a form.

    Parameters
    ----------
    body : bytes
    content_type : str
        Names the boundary.

    Raises
    ------
    BodyError
        If the form is damaged, has too many parts, does not name exactly one model, or can be read in two ways.
    """
    match = _BOUNDARY.fullmatch(content_type.strip())
    boundary = (match[1] or match[2]) if match else ""
    if not _BOUNDARY_TEXT.fullmatch(boundary):
        raise BodyError("The body must be multipart/form-data with a boundary.")
    mark = b"--" + boundary.encode()
    if not body.startswith(mark + b"\r\n") or body.rstrip(b"\r\n")[-len(mark) - 4 :] != b"\r\n" + mark + b"--":
        raise BodyError("The form does not begin and end with its boundary.")
    if body.count(b"\n" + mark) != body.count(b"\r\n" + mark):
        raise BodyError("The form holds its boundary behind a bare line end.")
    found: list[Form] = []
    at, parts = len(mark) + 2, 0
    while True:
        parts += 1
        head_end = body.find(b"\r\n\r\n", at, at + _MOST_PART_HEAD_BYTES)
        end = body.find(b"\r\n" + mark, head_end + 2)
        start = head_end + 4
        # A boundary in place of an empty line's end would be one to some parsers and none to others.
        if parts > MOST_PARTS or head_end < 0 or end < start:
            raise BodyError(f"The form is damaged, or has more than {MOST_PARTS} parts.")
        if _part_name(body[at:head_end]).lower() == b"model":
            found.append(Form(_form_model(body[start:end]), start, end))
        at = end + 2 + len(mark)
        if body[at : at + 2] == b"--":
            break
        if body[at : at + 2] != b"\r\n":
            raise BodyError("The form holds its boundary in the middle of a line.")
        at += 2
    if body[at + 2 :].strip(b"\r\n") or len(found) != 1:
        raise BodyError("The form must name its model in one part, and end with its last boundary.")
    return found[0]


def _part_name(head: bytes) -> bytes:
    names = []
    for line in head.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or line[:1] in b" \t" or b"\n" in line or b"\r" in line or name != name.strip():
            raise BodyError("A part of the form has a damaged head.")
        if name.lower() == b"content-disposition":
            match = _NAMED.fullmatch(value.strip(b" "))
            if match is None:
                raise BodyError('A part of the form must begin with form-data; name="...".')
            names.append(match[1])
        elif name.lower() == b"content-transfer-encoding":
            raise BodyError("A part of the form is encoded.")
    if len(names) != 1:
        raise BodyError("A part of the form has no name, or two.")
    return names[0]


def _form_model(value: bytes) -> str:
    if _MODEL_NAME.fullmatch(value) is None:
        raise BodyError("The form's model must be one printable word.")
    return value.decode()
