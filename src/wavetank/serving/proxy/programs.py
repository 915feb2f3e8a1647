"""The settings that studies of proxies share: where the programs of other proxies are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wavetank.settings import setting

if TYPE_CHECKING:
    from wavetank.serving.proxy.proxies import Proxy

_WHERE = "empty: .venv-peers/bin, then the search path"


@dataclass(frozen=True, kw_only=True)
class ProxyPrograms:
    """Where the programs of proxies are that are not ours."""

    litellm: str = setting("", says=f"program of litellm; {_WHERE}")
    vllm_router: str = setting("", says=f"program of vllm-router; {_WHERE}")
    haproxy: str = setting("", says=f"program of haproxy; {_WHERE}")

    def program_of(self, proxy: Proxy) -> str:
        """Return the program that was named for a proxy; empty where it is to be looked for, or there is none."""
        named = {"litellm": self.litellm, "vllm-router": self.vllm_router, "haproxy": self.haproxy}
        return named.get(proxy.program, "")
