"""A tiny Llama made here: weights from a seed, a tokenizer whose words are the replay's, laid out for two engines.

A real engine needs a model, and a machine without a network has none.  What the model says means nothing; what it costs
is real: every step runs the layers, reads the KV cache and picks a token, as with any other Llama.

* Words.  The vocabulary has all bytes, and each word of a blank and three letters as one token.  Token ids and text
  that :mod:`wavetank.serving.proxy.replay` makes of a trace are then the same prompts, as long as the trace says.
* Lengths.  The rows of the output head that belong to no word are zero.  The largest logit of thousands of random rows
  is positive, so that greedy answers never end by themselves and never hold half a character.
* Layouts.  A GGUF file for llama.cpp, and an entry of Hugging Face's local cache for Transformers, of equal weights:
  their greedy answers are equal.

Files go to the user's cache folder, appear there whole or not at all, and are reused when their checksums hold.

Sources: the GGUF specification; the layout of a Hugging Face cache; byte-level BPE as in GPT-2 (A. Radford et al.,
2019).

Differs from the sources: the GGUF rotates neighbours, Transformers halves of a head, so the rows of the query and key
projections are put in another order.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import shutil
import string
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.cache_folder import cache_folder
from wavetank.errors import BadValueError, WavetankError, missing_extra
from wavetank.settings import check_ranges, setting
from wavetank.sim.rng import stream

# The name under which engines serve it; the owner is nobody's.
MODEL = "local/tiny-llama"
# Part of the folder's name: other files under equal settings need another one.
_FORMAT = 1
_REVISION = "0" * 40
_MANIFEST = "checksums.json"
_BEGIN, _END = "<s>", "</s>"
# Where the words begin: the token of the word " aaa", as the replay has it.
FIRST_WORD = 998
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_EPSILON, _ROPE_BASE = 1e-5, 10_000.0
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5


@dataclass(frozen=True, kw_only=True)
class TinyLlama:
    """The shape of a model and the seed of its weights; 4.0 million parameters by default."""

    layers: int = setting(4, says="Transformer layers", low=1, high=64)
    heads: int = setting(3, says="Attention heads, each with a key and a value of its own", low=1, high=64)
    head_dim: int = setting(32, says="Size of a head; even", low=2, high=256)
    feed_forward: int = setting(256, says="Width of the feed-forward blocks", low=1, high=16_384)
    context_tokens: int = setting(8192, unit="tokens", says="Longest context", low=16, high=10**6)
    seed: int = setting(0, says="Seed of the weights", low=0, high=2**31 - 1)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.head_dim % 2:
            raise BadValueError("Positions rotate pairs, so heads have an even size.", given=self.head_dim)

    @property
    def hidden(self) -> int:
        """Width of the model."""
        return self.heads * self.head_dim

    @property
    def parameters(self) -> int:
        """How many numbers the weights have."""
        layer = 4 * self.hidden**2 + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        return 2 * len(vocabulary()) * self.hidden + self.layers * layer + self.hidden

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights under Transformers' names, float32; equal settings give equal weights."""
        rng = stream(self.seed, "tiny llama")
        hidden, words = self.hidden, len(vocabulary())

        def drawn(rows: int, columns: int, scale: float = 1.0) -> NDArray[np.float32]:
            return rng.standard_normal((rows, columns), np.float32) * np.float32(scale / np.sqrt(columns))

        head = drawn(words, hidden)
        head[:FIRST_WORD] = 0.0
        found = {"model.embed_tokens.weight": drawn(words, hidden, np.sqrt(hidden)), "lm_head.weight": head}
        found["model.norm.weight"] = np.ones(hidden, np.float32)
        for layer in range(self.layers):
            block = f"model.layers.{layer}"
            for norm in ("input_layernorm", "post_attention_layernorm"):
                found[f"{block}.{norm}.weight"] = np.ones(hidden, np.float32)
            for each in ("q_proj", "k_proj", "v_proj", "o_proj"):
                found[f"{block}.self_attn.{each}.weight"] = drawn(hidden, hidden)
            for each in ("gate_proj", "up_proj"):
                found[f"{block}.mlp.{each}.weight"] = drawn(self.feed_forward, hidden)
            found[f"{block}.mlp.down_proj.weight"] = drawn(hidden, self.feed_forward)
        return found

    def gguf(self) -> Path:
        """Return the model as a GGUF file, made if it is not there.

        Raises
        ------
        WavetankError
            If the package ``gguf`` is missing, or the cache folder cannot be written.
        """
        _require("gguf")
        return self._kept("gguf", _write_gguf) / "tiny-llama.gguf"

    def hub(self) -> Path:
        """Return a home of Hugging Face's tools (``HF_HOME``) whose cache holds the model as :data:`MODEL`.

        Raises
        ------
        WavetankError
            If the package ``safetensors`` is missing, or the cache folder cannot be written.
        """
        _require("safetensors")
        return self._kept("hub", _write_hub)

    def _kept(self, layout: str, write: Callable[[TinyLlama, Path], None]) -> Path:
        """Return a folder of the cache whose files are what ``write`` writes."""
        about = json.dumps({"format": _FORMAT, "layout": layout, **asdict(self)}, sort_keys=True)
        place = cache_folder() / "engines" / f"tiny-llama-{layout}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
        if _is_whole(place):
            return place
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=".partial", dir=place.parent))
            try:
                write(self, made)
                sums = {name: _checksum(made / name) for name in _files(made)}
                (made / _MANIFEST).write_text(json.dumps(sums, sort_keys=True), encoding="utf-8")
                _put(made, place)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        except OSError as error:
            raise WavetankError(
                f"The model cannot be written into the cache folder: {error.strerror or error}.",
                given=str(place),
                hint="XDG_CACHE_HOME names another folder",
            ) from error
        return place


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise missing_extra(package, "engines", needed_for="a model for a real engine")


def _put(made: Path, place: Path) -> None:
    """Give a whole folder its name; one that another process made meanwhile is as good, a damaged one goes."""
    for _ in range(3):
        with contextlib.suppress(OSError):
            made.rename(place)
            return
        if _is_whole(place):
            return
        # A process that has its files open keeps them.
        aside = Path(tempfile.mkdtemp(prefix=f"{place.name}.", suffix=".damaged", dir=place.parent))
        with contextlib.suppress(OSError):
            place.rename(aside / "it")
        shutil.rmtree(aside, ignore_errors=True)
    made.rename(place)


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _MANIFEST:
            yield path.relative_to(folder).as_posix()


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_whole(folder: Path) -> bool:
    """Say whether a folder holds the files of its manifest, with their checksums."""
    try:
        sums = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        return bool(sums) and all(_checksum(folder / name) == given for name, given in sums.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


@cache
def _byte_letters() -> tuple[str, ...]:
    """Return the letter that stands for each byte in a byte-level vocabulary: printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = itertools.count(256)
    return tuple(chr(byte) if byte in plain else chr(next(others)) for byte in range(256))


@cache
def vocabulary() -> tuple[str, ...]:
    """Return the tokens in the order of their ids: two marks, the bytes, the beginnings of words, the words."""
    blank, letters = _byte_letters()[ord(" ")], string.ascii_lowercase
    tokens = [_BEGIN, _END, *_byte_letters()]
    for length in (1, 2):
        tokens += [blank + "".join(word) for word in itertools.product(letters, repeat=length)]
    tokens += [f"<unused{number}>" for number in range(len(tokens), FIRST_WORD)]
    tokens += [blank + "".join(word) for word in itertools.product(letters, repeat=3)]
    return tuple(tokens)


@cache
def _merges() -> tuple[str, ...]:
    """Return the pairs that become one token, first come first: a blank and a letter, then one more, then one more."""
    blank = _byte_letters()[ord(" ")]
    words = [token for token in vocabulary() if token.startswith(blank) and 2 <= len(token) <= 4]
    return tuple(f"{word[:-1]} {word[-1]}" for word in words)


def _kind(token: str) -> int:
    if token in (_BEGIN, _END):
        return _CONTROL
    return _UNUSED if token.startswith("<unused") else _NORMAL


def _neighbours(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Put the rows of a projection whose heads rotate by halves in the order of heads that rotate neighbours."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_GGUF_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight", "lm_head.weight": "output.weight",
    "model.norm.weight": "output_norm.weight",
}  # fmt: skip


def _gguf_name(name: str) -> str:
    if name in _GGUF_OUTSIDE:
        return _GGUF_OUTSIDE[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.weight"


def _write_gguf(model: TinyLlama, folder: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(folder / "tiny-llama.gguf", "llama")
    writer.add_name("tiny-llama")
    writer.add_context_length(model.context_tokens)
    writer.add_embedding_length(model.hidden)
    writer.add_block_count(model.layers)
    writer.add_feed_forward_length(model.feed_forward)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.heads)
    writer.add_layer_norm_rms_eps(_EPSILON)
    writer.add_rope_dimension_count(model.head_dim)
    writer.add_rope_freq_base(_ROPE_BASE)
    writer.add_vocab_size(len(vocabulary()))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocabulary()))
    writer.add_token_types([_kind(token) for token in vocabulary()])
    writer.add_token_merges(list(_merges()))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(_TEMPLATE)
    for name, rows in model.weights().items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            rows = _neighbours(rows, model.heads)
        writer.add_tensor(_gguf_name(name), rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_hub(model: TinyLlama, home: Path) -> None:
    from safetensors.numpy import save_file

    entry = home / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = entry / "snapshots" / _REVISION
    for folder in (snapshot, entry / "refs"):
        folder.mkdir(parents=True)
    (entry / "refs" / "main").write_text(_REVISION, encoding="ascii")
    save_file(model.weights(), snapshot / "model.safetensors", metadata={"format": "pt"})
    for name, content in _hub_files(model).items():
        (snapshot / name).write_text(json.dumps(content), encoding="utf-8")


def _hub_files(model: TinyLlama) -> Mapping[str, Any]:
    """Return the JSON files beside the weights, by name."""
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    marks = {"bos_token_id": 0, "eos_token_id": 1}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": model.hidden,
            "intermediate_size": model.feed_forward,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.heads,
            "head_dim": model.head_dim,
            "vocab_size": len(vocabulary()),
            "max_position_embeddings": model.context_tokens,
            "rms_norm_eps": _EPSILON,
            "rope_theta": _ROPE_BASE,
            "tie_word_embeddings": False,
            "hidden_act": "silu",
            "dtype": "float32",
            **marks,
        },
        "generation_config.json": {"do_sample": False, **marks},
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [{"id": number, "content": mark, **plain} for number, mark in enumerate((_BEGIN, _END))],
            "pre_tokenizer": by_bytes,
            "decoder": by_bytes,
            "model": {
                "type": "BPE",
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {token: number for number, token in enumerate(vocabulary())},
                "merges": list(_merges()),
            },
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _BEGIN,
            "eos_token": _END,
            "model_max_length": model.context_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": _TEMPLATE,
        },
    }
