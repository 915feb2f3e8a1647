"""The registry of data sets, and fetching from it; nothing here reaches the network."""

import gzip
import hashlib
import io
import re
import urllib.error

import pytest

from wavetank.errors import BadFileError, DataUnavailableError, UnknownNameError
from wavetank.workloads import datasets
from wavetank.workloads.datasets import DataFile, DataSet

AZURE_ORIGINAL = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2023-11-16 23:59:58.9999999,374,44\r\n"
    b"2023-11-17 00:00:00.1000000,396,109\r\n"
    b"2023-11-17 00:39:58.9999998,7,8\r\n"
    b"2023-11-17 00:39:58.9999999,9,10"
)
AZURE_CUT = b"arrival_s,context_tokens,generated_tokens\n0.000000,374,44\n1.100000,396,109\n2400.000000,7,8\n"

PLAIN = b"a,b\n1,2\n"
PACKED = b"c\n3\n"


def listed(path, content, **more):
    return DataFile(path=path, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest(), **more)


def sample(*files):
    return DataSet(
        name="sample", about="x", licence="MIT", citation="y", home="https://example.org/home", files=tuple(files)
    )


BOTH = sample(
    listed("plain.csv", PLAIN, address="https://example.org/plain.csv"),
    listed("in/packed.csv.gz", PACKED, address="https://example.org/packed.csv"),
)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """$WAVETANK_DATA, an empty folder."""
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path / "own"))
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The place of the cache; $WAVETANK_DATA is not set."""
    monkeypatch.delenv("WAVETANK_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "wavetank" / "data"


@pytest.fixture
def register(monkeypatch):
    """Make a data set the only one of the registry."""

    def replace(dataset):
        monkeypatch.setattr(datasets, "entries", lambda: (dataset,))

    return replace


@pytest.fixture
def public(monkeypatch):
    """What the public addresses hold; an exception is raised.  The addresses asked for are in ``asked``."""
    contents = {"https://example.org/plain.csv": PLAIN, "https://example.org/packed.csv": PACKED}
    contents["asked"] = asked = []

    def answer(address):
        asked.append(address)
        if isinstance(contents[address], Exception):
            raise contents[address]
        return io.BytesIO(contents[address])

    monkeypatch.setattr(datasets, "_open", answer)
    return contents


def left_over(cache):
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.is_file())


class TestRegistry:
    def test_it_holds_the_sets_that_wavetank_uses(self):
        assert {dataset.name for dataset in datasets.entries()} >= {
            "azure-llm-2023", "mooncake-kv-trace", "vllm-layer-profiles", "vidur-profiles",
            "gpu-specs-and-estimates", "splitwise-perf-power", "lora-serving-vllm", "seq-lengths",
        }  # fmt: skip

    @pytest.mark.parametrize("dataset", datasets.entries(), ids=lambda dataset: dataset.name)
    def test_every_entry_is_whole(self, dataset):
        assert dataset.about
        assert dataset.licence
        assert dataset.citation
        assert dataset.home.startswith("https://github.com/")
        paths = [file.path for file in dataset.files]
        assert len(set(paths)) == len(paths) > 0
        assert dataset.size_bytes == sum(file.size_bytes for file in dataset.files) > 0
        for file in dataset.files:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert ".." not in file.path
            assert file.convert is None or file.convert in datasets._CONVERSIONS
            # A commit in the address: what it holds does not change.
            assert file.address is None or re.match(
                # A set may stem from several repositories: "this and that".
                "("
                + re.escape(dataset.home.replace("github.com", "raw.githubusercontent.com")).replace("\\ and\\ ", "|")
                + ")/[0-9a-f]{40}/[^?]+$",
                file.address,
            )

    @pytest.mark.parametrize("dataset", datasets.entries(), ids=lambda dataset: dataset.name)
    def test_the_files_on_this_machine_are_those_on_record(self, dataset):
        try:
            folder = datasets.find(dataset.name)
            verified = datasets.verify(dataset.name)
        except DataUnavailableError as error:
            pytest.skip(error.problem)
        assert verified == folder
        assert datasets.status(dataset.name).missing == ()

    def test_an_unknown_set_shows_the_nearest(self):
        for ask in (datasets.entry, datasets.find, datasets.status, datasets.verify, datasets.fetch):
            with pytest.raises(UnknownNameError) as caught:
                ask("azure-llm-2024")
            assert caught.value.nearest == "azure-llm-2023"


class TestFind:
    def test_the_users_folder_comes_before_the_cache(self, cache, own, register):
        register(BOTH)
        (cache / "sample").mkdir(parents=True)
        assert datasets.find("sample") == cache / "sample"
        (own / "sample").mkdir()
        assert datasets.find("sample") == own / "sample"

    def test_a_file_is_found_in_the_first_folder_that_has_it(self, cache, own, register):
        register(BOTH)
        (own / "sample").mkdir()
        (cache / "sample").mkdir(parents=True)
        (cache / "sample" / "plain.csv").write_bytes(PLAIN)
        assert datasets.find("sample", "plain.csv") == cache / "sample" / "plain.csv"

    def test_a_set_that_is_not_here_comes_with_the_command_that_gets_it(self, cache, register):
        register(BOTH)
        with pytest.raises(DataUnavailableError) as caught:
            datasets.find("sample")
        assert caught.value.hint == "wavetank data fetch sample"
        assert str(cache / "sample") in caught.value.where
        with pytest.raises(DataUnavailableError, match=r"plain\.csv"):
            datasets.find("sample", "plain.csv")

    def test_a_set_without_public_address_comes_with_its_home(self, cache, register):
        register(sample(listed("plain.csv", PLAIN)))
        with pytest.raises(DataUnavailableError, match=r"https://example\.org/home.*WAVETANK_DATA"):
            datasets.find("sample")

    def test_a_file_that_the_set_does_not_have_shows_the_nearest(self, cache, register):
        register(BOTH)
        with pytest.raises(UnknownNameError) as caught:
            datasets.find("sample", "plane.csv")
        assert caught.value.nearest == "plain.csv"

    def test_a_relative_cache_home_is_ignored(self, monkeypatch, tmp_path):
        monkeypatch.delenv("WAVETANK_DATA", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", "here")
        (tmp_path / ".cache" / "wavetank" / "data" / "seq-lengths").mkdir(parents=True)
        assert datasets.find("seq-lengths") == tmp_path / ".cache" / "wavetank" / "data" / "seq-lengths"


class TestStatus:
    def test_absent_partial_and_whole(self, cache, register):
        register(BOTH)
        status = datasets.status("sample")
        assert (status.place, status.path, status.missing) == ("absent", None, ("plain.csv", "in/packed.csv.gz"))
        (cache / "sample").mkdir(parents=True)
        (cache / "sample" / "plain.csv").write_bytes(PLAIN)
        status = datasets.status("sample")
        assert (status.place, status.path, status.missing) == ("cache", cache / "sample", ("in/packed.csv.gz",))

    def test_the_users_own_folder(self, own, register):
        register(BOTH)
        (own / "sample").mkdir()
        assert datasets.status("sample").place == "WAVETANK_DATA"


class TestVerify:
    def test_the_compressor_does_not_matter(self, own, register):
        register(BOTH)
        (own / "sample" / "in").mkdir(parents=True)
        (own / "sample" / "plain.csv").write_bytes(PLAIN)
        for level in (1, 9):
            (own / "sample" / "in" / "packed.csv.gz").write_bytes(gzip.compress(PACKED, level, mtime=level))
            assert datasets.verify("sample") == own / "sample"

    @pytest.mark.parametrize("content", [b"a,b\n1,3\n", PLAIN + b"3,4\n", b""])
    def test_a_changed_file_is_named_with_what_to_do(self, own, register, content):
        register(BOTH)
        (own / "sample").mkdir()
        (own / "sample" / "plain.csv").write_bytes(content)
        with pytest.raises(BadFileError, match="WAVETANK_DATA") as caught:
            datasets.verify("sample")
        assert caught.value.where == str(own / "sample" / "plain.csv")

    def test_a_damaged_archive_in_the_cache_is_fetched_again(self, cache, register, public):
        register(BOTH)
        folder = datasets.fetch("sample")
        packed = folder / "in" / "packed.csv.gz"
        packed.write_bytes(packed.read_bytes()[:-6])
        with pytest.raises(BadFileError, match="wavetank data fetch sample"):
            datasets.verify("sample")
        datasets.fetch("sample")
        assert datasets.verify("sample") == folder

    def test_a_missing_file_is_named(self, own, register):
        register(BOTH)
        (own / "sample").mkdir()
        with pytest.raises(DataUnavailableError, match=r"plain\.csv"):
            datasets.verify("sample")

    def test_a_changed_file_without_public_address_comes_with_its_home(self, own, register):
        register(sample(listed("plain.csv", PLAIN)))
        (own / "sample").mkdir()
        (own / "sample" / "plain.csv").write_bytes(b"")
        with pytest.raises(BadFileError, match=r"https://example\.org/home"):
            datasets.verify("sample")


class TestFetch:
    def test_files_arrive_checked_and_compressed(self, cache, register, public):
        register(BOTH)
        steps = []
        folder = datasets.fetch("sample", progress=lambda *step: steps.append(step))
        assert folder == cache / "sample" == datasets.find("sample")
        assert (folder / "plain.csv").read_bytes() == PLAIN
        assert gzip.decompress((folder / "in" / "packed.csv.gz").read_bytes()) == PACKED
        assert steps == [("plain.csv", 1, 2), ("in/packed.csv.gz", 2, 2)]
        assert left_over(cache) == ["sample/in/packed.csv.gz", "sample/plain.csv"]

    def test_sound_files_are_not_downloaded_again(self, cache, register, public):
        register(BOTH)
        folder = datasets.fetch("sample")
        (folder / "plain.csv").write_bytes(b"changed")
        public["asked"].clear()
        datasets.fetch("sample")
        assert public["asked"] == ["https://example.org/plain.csv"]
        assert datasets.verify("sample") == folder

    def test_a_file_that_is_not_the_one_on_record_leaves_nothing(self, cache, register, public):
        register(BOTH)
        public["https://example.org/packed.csv"] = b"c\n4\n"
        with pytest.raises(BadFileError, match="on record") as caught:
            datasets.fetch("sample")
        assert caught.value.where == "https://example.org/packed.csv"
        assert left_over(cache) == []

    @pytest.mark.parametrize(
        "failure", [urllib.error.URLError("no route"), TimeoutError("timed out"), ConnectionResetError("reset")]
    )
    def test_a_network_that_fails_leaves_nothing(self, cache, register, public, failure):
        register(BOTH)
        public["https://example.org/packed.csv"] = failure
        with pytest.raises(DataUnavailableError) as caught:
            datasets.fetch("sample")
        assert caught.value.where == "https://example.org/packed.csv"
        assert "https://example.org/home" in caught.value.hint
        assert left_over(cache) == []

    def test_an_interrupted_fetch_leaves_what_was_there(self, cache, register, public):
        register(BOTH)
        folder = datasets.fetch("sample")
        (folder / "plain.csv").write_bytes(b"changed")
        (folder / "in" / "packed.csv.gz").unlink()

        def interrupt(path, done, total):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            datasets.fetch("sample", progress=interrupt)
        assert left_over(cache) == ["sample/plain.csv"]
        assert (folder / "plain.csv").read_bytes() == b"changed"

    def test_an_endless_answer_is_cut_off(self, cache, register, public, monkeypatch):
        register(BOTH)
        monkeypatch.setattr(datasets, "_LARGEST_DOWNLOAD_BYTES", 4)
        with pytest.raises(DataUnavailableError, match="larger"):
            datasets.fetch("sample")
        assert left_over(cache) == []

    def test_a_set_without_public_address_says_so(self, cache, register, public):
        register(sample(listed("plain.csv", PLAIN)))
        with pytest.raises(DataUnavailableError, match="no public address"):
            datasets.fetch("sample")
        assert public["asked"] == []

    def test_of_a_mixed_set_the_public_part_is_fetched(self, cache, register, public):
        register(sample(BOTH.files[0], listed("counted.csv", PACKED)))
        datasets.fetch("sample")
        assert datasets.status("sample").missing == ("counted.csv",)
        assert datasets.find("sample", "plain.csv").read_bytes() == PLAIN

    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path, monkeypatch, register, public):
        register(BOTH)
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(DataUnavailableError, match="XDG_CACHE_HOME"):
            datasets.fetch("sample")

    def test_an_original_that_cannot_be_converted_is_refused(self, cache, register, public):
        address = "https://example.org/plain.csv"
        for convert in datasets._CONVERSIONS:
            register(sample(listed("cut.csv", AZURE_CUT, address=address, convert=convert)))
            for original in (b"", PLAIN, b"\xff"):
                public[address] = original
                with pytest.raises(BadFileError):
                    datasets.fetch("sample")
        assert left_over(cache) == []

    def test_only_https_is_opened(self):
        for address in ("http://127.0.0.1:9/x", "file:///etc/hostname", "ftp://127.0.0.1:9/x"):
            with pytest.raises(urllib.error.URLError, match="unknown url type"):
                datasets._open(address)

    def test_nobody_listening_is_an_error_that_can_be_put_right(self, cache, register):
        register(sample(listed("plain.csv", PLAIN, address="https://127.0.0.1:9/plain.csv")))
        with pytest.raises(DataUnavailableError, match="cannot be downloaded"):
            datasets.fetch("sample")


class TestConversions:
    def test_azure_times_become_seconds_of_the_first_forty_minutes(self):
        # The third request comes 100 ns before the end; the fourth at the end, which is out.
        assert datasets._azure_first_40_minutes(AZURE_ORIGINAL) == AZURE_CUT

    def test_azure_fractions_may_be_missing_or_short(self):
        text = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 00:00:00,1,2\n2023-11-16 00:00:01.25,3,4\n"
        lines = datasets._azure_first_40_minutes(text).splitlines()
        assert lines[1:] == [b"0.000000,1,2", b"1.250000,3,4"]

    def test_of_vidurs_timings_the_medians_stay(self):
        original = b"time_stats.add.min,time_stats.add.median,n_head\n0.1,0.20000000000000001,32\n"
        assert datasets._vidur_medians(original) == b"time_stats.add.median,n_head\r\n0.20000000000000001,32\r\n"
