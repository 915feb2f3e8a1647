import gzip
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.errors import BadFileError, MissingExtraError
from wavetank.extras import install_command
from wavetank.protocols.sessions import parser
from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.parser import DEEPEST_NESTING, parse_protocols, read_protocols
from wavetank.protocols.sessions.syntax import Choice, Continue, Do, Loop, Message, Mix, Place, Unsupported


def body(text, **roles):
    return parse_protocols(f"global protocol P(role A, role B, role C) {{\n{text}\n}}").protocols[0].body


def test_a_message_keeps_label_payload_roles_annotation_and_place():
    (message,) = body('  hello(int, name: string) from A to B, C; @"z > 1"')
    assert isinstance(message, Message)
    assert (message.label, message.sender, message.receivers) == ("hello", "A", ("B", "C"))
    assert [(each.name, each.type) for each in message.payload] == [("", "int"), ("name", "string")]
    assert (message.annotation, message.place) == ("z > 1", Place(2, 3))


def test_labels_may_be_numbers_and_need_no_brackets():
    first, second = body("220() from A to B; ok from B to A;")
    assert (first.label, second.label) == ("220", "ok")


def test_a_mix_has_two_sides_and_an_arbiter():
    (mix,) = body("mix race { a() from A to B; } or interrupt by B { b() from B to A; }")
    assert isinstance(mix, Mix)
    assert (mix.name, mix.arbiter, mix.left[0].label, mix.right[0].label) == ("race", "B", "a", "b")
    (unnamed,) = body("mix { a() from A to B; } or interrupt by B { b() from B to A; }")
    assert unnamed.name == ""


@pytest.mark.parametrize("word", ["mix", "interrupt", "by", "connect", "wrap", "disconnect", "par", "explicit", "sig"])
def test_words_of_the_extension_remain_labels_and_roles(word):
    module = parse_protocols(
        f"protocol P(role {word}, role B) {{ {word}() from {word} to B; {word} from B to {word}; }}"
    )
    assert [each.label for each in module.protocols[0].body] == [word, word]


def test_loops_choices_and_calls_are_read():
    loop, call = body(
        "rec X [n<A, B>: int = 0] { choice at A { continue X [n + 1]; } or { m from A to B; } } do Q(A, B);"
    )
    assert isinstance(loop, Loop)
    assert loop.variables[0].roles == ("A", "B")
    (choice,) = loop.body
    assert isinstance(choice, Choice)
    assert isinstance(choice.branches[0][0], Continue)
    assert choice.branches[0][0].values[0].kind == "+"
    assert isinstance(call, Do)
    assert call.roles == ("A", "B")


def test_comments_of_both_styles_are_skipped_and_ml_comments_nest():
    text = "/* one */ // two\n(* three (* four *) (*) still three\n *) (*) five\nprotocol P(role A, role B) { }"
    assert parse_protocols(text).protocols[0].place == Place(4, 1)


def test_scribbles_modules_imports_and_type_declarations_are_read():
    module = parse_protocols(
        'module a.b.C; import x.Y as Z; type <java> "java.lang.Integer" from "rt.jar" as Int;\n'
        'sig <java> "M" from "M.java" as M; explicit aux global protocol P(role A, role B) { M from A to B; }'
    )
    assert (module.name, module.imports, module.declared) == ("a.b.C", ("x.Y",), ("Int", "M"))
    assert module.protocols[0].explicit
    assert module.protocols[0].auxiliary


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("connect A to B;", "connect A to B"),
        ("hi(int) connect A to B;", "connect A to B"),
        ("wrap A to B;", "wrap A to B"),
        ("disconnect A and B;", "disconnect A and B"),
        ("interruptible scope { a from A to B; } with { b() by B; }", "interruptible"),
        ("par { a from A to B; } and { b from B to A; }", "par"),
    ],
)
def test_what_scribble_has_beyond_is_read_as_unsupported(text, word):
    (statement,) = body(text)
    assert isinstance(statement, Unsupported)
    assert statement.word == word
    assert len(statement.why) > 30


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        ("protocol P(role A) {\n  a() from A;\n}", "Expected `to`", "line 2, column 13"),
        ("protocol P(role A) {\n  a() fron A to B;\n}", "Expected `connect` or `from`", "line 2, column 7"),
        ("protocol P(role A) {", "never ends", "line 1, column 20"),
        ("protocol P(role A) { do Q<)}>(A);", "never ends", "line 1, column 20"),
        ("protocol P(role A) { (* ", "comment that begins here never ends", "line 1, column 22"),
        ("/* ", "comment that begins here never ends", "line 1, column 1"),
        ("protocol P(role A) { $ }", "begins nothing", "line 1, column 22"),
        ("protocol P(role A) { } }", "Something else is expected", "line 1, column 24"),
        ("protocol P() { }", "Expected `role`", "line 1, column 12"),
        ("choice at A { }", "Something else is expected", "line 1, column 1"),
        ("(*# Nonsense #*)", "Something else is expected", "line 1, column 5"),
        ("protocol P(role A; new role B) { }", "Only a nested protocol", "line 1, column 18"),
        ("protocol P(role from) { }", "Expected a role; `from` is a word of the language", "line 1, column 17"),
        ("protocol P(role A) { mix { } or { } }", "Expected `interrupt`", "line 1, column 33"),
        ("protocol P(role A) { mix { } or interrupt by A { } or { } }", "two sides", "line 1, column 52"),
    ],
)
def test_what_breaks_the_grammar_is_reported_with_its_place(text, problem, place):
    with pytest.raises(BadFileError) as caught:
        parse_protocols(text, path="p.nuscr")
    assert problem in caught.value.problem
    assert caught.value.where == f"p.nuscr, {place}"


def test_a_misspelt_pragma_has_a_nearest_one():
    with pytest.raises(BadFileError) as caught:
        parse_protocols("(*# NestedProtocol #*)")
    assert caught.value.nearest == "NestedProtocols"


def test_too_deep_nesting_is_refused_not_a_crash():
    deep = DEEPEST_NESTING + 1
    with pytest.raises(BadFileError, match="nested too deeply"):
        parse_protocols("protocol P(role A) {" + "rec X {" * deep + "}" * deep + "}")
    with pytest.raises(BadFileError, match="nested too deeply"):
        parse_protocols("protocol P(role A, role B) { m(x: int{" + "(" * 5000 + "1" + ")" * 5000 + "}) from A to B; }")
    with pytest.raises(BadFileError, match="nested too deeply"):
        parse_protocols("protocol P(role A, role B) { m(x: int{" + "not -" * 5000 + "1}) from A to B; }")
    with pytest.raises(BadFileError, match="nested too deeply"):
        parse_protocols("protocol P(role A, role B) { m(x: int{1" + " + 1" * 5000 + "}) from A to B; }")


def test_signs_bind_loosest_first_and_tightest_later():
    (message,) = body("m(x: int{- 1 + not 2 && 3}) from A to B;")
    sign = message.payload[0].refinement
    assert (sign.kind, sign.place) == ("neg", Place(2, 10))
    (both,) = sign.parts
    assert [each.kind for each in (both, *both.parts)] == ["&&", "+", "int"]
    assert [each.kind for each in both.parts[0].parts] == ["int", "not"]


def test_a_misspelt_word_has_a_nearest_one_and_a_model_to_follow():
    with pytest.raises(BadFileError) as caught:
        body("a() fron A to B;")
    assert (caught.value.given, caught.value.nearest) == ("fron", "from")
    assert caught.value.hint == "label(type) from A to B;"


def test_words_are_read_whole():
    for text in ("protocol P(roleA) { }", "protocol P<>(role A) { }", "globalprotocol P(role A) { }"):
        with pytest.raises(BadFileError):
            parse_protocols(text)


def test_a_number_beyond_every_type_is_refused():
    with pytest.raises(BadFileError, match="number is too large"):
        body(f"m(x: int{{x < {'9' * 5000}}}) from A to B;")


def test_without_lark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lark", None)
    parser._grammar.cache_clear()
    with pytest.raises(MissingExtraError) as caught:
        parse_protocols("protocol P(role A) { }")
    assert caught.value.hint == install_command("protocols")


@given(st.text(max_size=80))
def test_no_text_crashes_the_parser(text):
    try:
        parse_protocols(text)
    except BadFileError as error:
        assert error.where


WORDS = [
    "protocol",
    "global",
    "P",
    "(",
    ")",
    "role",
    "A",
    "B",
    ",",
    "{",
    "}",
    ";",
    "from",
    "to",
    "m",
    "choice",
    "at",
    "or",
    "rec",
    "continue",
    "do",
    "mix",
    "interrupt",
    "by",
    "<",
    ">",
    ":",
    "@",
    "[",
    "]",
    "=",
    "1",
]


@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_no_sequence_of_words_crashes_the_parser(words):
    try:
        parse_protocols("protocol P(role A, role B) { " + " ".join(words))
    except BadFileError as error:
        assert error.where


def test_files_are_read_plain_and_compressed(tmp_path):
    text = "protocol P(role A, role B) { m from A to B; }"
    (tmp_path / "p.nuscr").write_text(text)
    with gzip.open(tmp_path / "p.nuscr.gz", "wt") as file:
        file.write(text)
    assert read_protocols(tmp_path / "p.nuscr").protocols == read_protocols(tmp_path / "p.nuscr.gz").protocols


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff\xfe\x00", "not UTF-8"), (b"//" + b"x" * (5 << 20), "too large"), (None, "cannot be read")],
)
def test_a_file_that_is_no_protocol_is_reported(tmp_path, content, problem):
    path = tmp_path / "p.nuscr"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadFileError, match=problem):
        read_protocols(path)


def test_a_byte_that_is_no_text_is_reported_with_line_and_column(tmp_path):
    path = tmp_path / "p.nuscr"
    path.write_bytes("protocol\n \u00e4 ".encode() + b"\xff")
    with pytest.raises(BadFileError, match="not UTF-8") as caught:
        read_protocols(path)
    assert caught.value.where == f"{path}, line 2, column 4"


def test_no_more_of_a_file_is_read_than_is_allowed(tmp_path):
    path = tmp_path / "p.nuscr"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadFileError, match="too large"):
        read_protocols(path)
    path = tmp_path / "p.nuscr.gz"
    path.write_bytes(gzip.compress(b" " * (5 << 20)))
    with pytest.raises(BadFileError, match="too large"):
        read_protocols(path)


def test_a_damaged_compressed_file_is_reported(tmp_path):
    path = tmp_path / "p.nuscr.gz"
    whole = bytearray(gzip.compress(" ".join(map(str, range(2000))).encode()))
    whole[300:360] = bytes(byte ^ 0x5A for byte in whole[300:360])
    for damaged in (b"\x1f\x8b\x08nothing", bytes(whole), gzip.compress(b"protocol" * 99)[:20]):
        path.write_bytes(damaged)
        with pytest.raises(BadFileError, match="cannot be read"):
            read_protocols(path)


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_parse(name):
    assert parse_protocols(example(name)).protocols
