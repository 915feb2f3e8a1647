"""The pages over runs, ledger and catalog: what they show, and what a stranger cannot make them do."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import wavetank
from wavetank.cli import serve, site
from wavetank.errors import BadValueError
from wavetank.ledger import claims

Get = Callable[..., tuple[int, str, dict[str, str]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for seeds in (3, 6):
        wavetank.compare("toy-noise", systems=["toy-plain", "toy-shifted"], seeds=seeds, out=folder, on="here")
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "runs"))


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Get]:
    server = serve.listening(folder, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()

    def get(path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=300)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), {key.lower(): value for key, value in answer.getheaders()}
        finally:
            connection.close()

    get.port = server.server_address[1]  # type: ignore[attr-defined]
    try:
        yield get
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def labels(runs: Path) -> list[str]:
    return sorted(path.parent.relative_to(runs).as_posix() for path in runs.glob("*/*/study.toml"))


def test_runs_are_listed_with_their_answer_and_filtered(runs: Path) -> None:
    with served(runs) as get:
        status, page, _ = get("/")
        assert status == 200
        assert all(f'href="/run/{label}"' in page for label in labels(runs))
        assert "toy-shifted has 0.5 times the value of toy-plain" in page
        assert "No run matches." in get("/?q=nothing-like-it")[1]
        assert labels(runs)[0] in get("/?q=TOY-noise")[1]


def test_a_list_of_runs_says_what_was_set_and_finds_it(runs: Path) -> None:
    wavetank.compare("toy-noise", systems=["toy-plain"], seeds=1, out=runs, on="here", offset_s=0.37)
    plain, given = labels(runs)[0], labels(runs)[-1]
    with served(runs) as get:
        assert get("/")[1].count("offset_s=0.37") == 1
        found = get("/?q=offset_s+%3D+0.37")[1]
        # A name may begin another one: runs of the same second are numbered.
        assert f">{given}<" in found and f">{plain}<" not in found


def test_the_ledger_is_judged_again_only_when_the_evidence_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    monkeypatch.setattr("wavetank.ledger.claims.ledger", lambda: judged.append(1) or [])
    monkeypatch.setattr("wavetank.cli.site.evidence_folder", lambda: tmp_path)
    with served(tmp_path) as get:
        assert get("/ledger")[0] == get("/ledger/quantas2")[0] == get("/ledger")[0] == 200
        assert len(judged) == 1
        kept = tmp_path / "study" / "label" / "run.json"
        kept.parent.mkdir(parents=True)
        kept.touch()
        assert get("/ledger")[0] == 200
    assert len(judged) == 2


def test_a_run_is_its_report(runs: Path) -> None:
    label = labels(runs)[0]
    with served(runs) as get:
        assert get(f"/run/{label}")[1] == (runs / label / "report.html").read_text()
        (runs / label / "report.html").unlink()
        assert "toy-shifted has 0.5 times" in get(f"/run/{label}")[1]


def test_two_runs_stand_side_by_side(runs: Path) -> None:
    first, second = labels(runs)
    with served(runs) as get:
        status, page, _ = get(f"/diff?run={second}&run={first}")
        assert status == 200
        assert page.index(first) < page.index(second)
        assert "<td>3</td><td>6</td>" in page
        assert get(f"/diff?run={first}")[0] == 400


def test_the_ledger_and_the_catalog_are_there_without_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The whole ledger takes seconds; the claims of one paper show as much.
    whole = claims.ledger
    monkeypatch.setattr("wavetank.ledger.claims.ledger", lambda: whole(["amortized-brb"]))
    site._judged_of.cache_clear()
    with served(tmp_path / "none") as get:
        assert "There is no run in" in get("/")[1]
        assert "papers reached" in get("/ledger")[1]
        assert "Headlines" in get("/ledger/quantas2")[1]
        assert "amortized-brb: " in get("/ledger/amortized-brb")[1]
        assert "balance-route" in get("/catalog?q=balance")[1]
        assert "No system matches" in get("/catalog?q=zzzz")[1]
        assert get("/catalog/vllm-default")[0] == 200


@pytest.mark.parametrize("path", [
    "/nope", "/run", "/run/x", "/run/x/y", "/run/x/y/z", "/run/../x", "/run/..%2f..%2f/etc", "/run/toy-noise/%2e%2e",
    "/run/toy-noise/..%5c..", "/run/toy-noise/a%00b", "/ledger/none", "/catalog/none", "/ledger/a/b", "/diff/x",
])  # fmt: skip
def test_nothing_else_is_there(runs: Path, path: str) -> None:
    with served(runs) as get:
        status, page, _ = get(path)
        assert status == 404
        assert "Traceback" not in page


def test_no_link_leads_out_of_the_folder_of_runs(runs: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "study.toml").write_text("study = 'toy-noise'")
    (secret / "report.html").write_text("SECRET")
    (runs / "toy-noise" / "link").symlink_to(secret)
    label = labels(runs)[0]
    (runs / label / "report.html").unlink()
    (runs / label / "report.html").symlink_to(secret / "report.html")
    with served(runs) as get:
        assert get("/run/toy-noise/link")[0] == 404
        assert "SECRET" not in get(f"/run/{label}")[1]


def test_a_damaged_run_is_named_and_the_others_stay(runs: Path) -> None:
    first, second = labels(runs)
    (runs / first / "study.toml").write_text("study = 5 <script>alert(1)</script>")
    with served(runs) as get:
        page = get("/")[1]
        assert "cannot be read" in page
        assert f"/run/{second}" in page
        status, page, _ = get(f"/run/{first}?x=<script>alert(1)</script>")
        assert status in (200, 400)
        assert "<script>alert" not in get("/?q=<script>alert(1)</script>")[1]


def test_a_run_without_records_says_how_to_go_on(runs: Path) -> None:
    label = labels(runs)[0]
    for name in ("records.parquet", "report.html", "records.jsonl"):
        (runs / label / name).unlink()
    (runs / label / "records.jsonl").write_text("")
    with served(runs) as get:
        status, page, _ = get(f"/run/{label}")
        assert (status, "--resume" in page) == (404, True)
        assert "no records yet" in get("/")[1]


def test_a_foreign_name_that_points_here_reads_nothing(runs: Path) -> None:
    with served(runs) as get:
        assert get("/", Host="evil.example")[0] == 403
        assert get("/", Host=f"localhost:{get.port}")[0] == 200  # type: ignore[attr-defined]
        assert get("/", Host=f"[::1]:{get.port}")[0] == 200  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_reading_is_answered(runs: Path, method: str) -> None:
    with served(runs) as get:
        assert get("/", method)[0] == 501


def test_pages_load_nothing_and_are_kept_by_nobody(runs: Path) -> None:
    with served(runs) as get:
        status, body, headers = get("/", "HEAD")
    assert (status, body) == (200, "")
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" in headers and "Python" not in headers["server"]


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000 + b"\r\n"]
)
def test_what_is_no_request_ends_and_the_next_is_answered(runs: Path, sent: bytes) -> None:
    with served(runs) as get:
        with socket.create_connection(("127.0.0.1", get.port), timeout=30) as raw:  # type: ignore[attr-defined]
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                raw.recv(65536)
        assert get("/")[0] == 200


def test_silent_clients_hold_up_nobody_and_too_many_are_refused(runs: Path) -> None:
    with served(runs) as get, contextlib.ExitStack() as stack:
        for _ in range(serve._MOST_WAITING - 1):
            stack.enter_context(socket.create_connection(("127.0.0.1", get.port), timeout=30))  # type: ignore[attr-defined]
        assert get("/catalog/vllm-default")[0] == 200


def test_two_servers_on_one_port_are_refused_with_the_next_step(tmp_path: Path) -> None:
    with served(tmp_path) as get:
        with pytest.raises(BadValueError, match="cannot be listened on") as caught:
            serve.listening(tmp_path, "127.0.0.1", get.port)  # type: ignore[attr-defined]
        assert "--port 0" in str(caught.value)
