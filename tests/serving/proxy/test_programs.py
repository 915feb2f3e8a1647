"""Where studies of proxies look for programs."""

from wavetank.ledger import catalog
from wavetank.serving.proxy.programs import ProxyPrograms
from wavetank.serving.proxy.proxies import DirectConnection, WavetankRouter
from wavetank.serving.proxy.study_chaos import ProxyChaos
from wavetank.serving.proxy.study_speed import ProxySpeed

PEERS = ("litellm", "vllm-router", "haproxy")


def test_every_peer_of_the_studies_can_be_named_under_its_own_name():
    for study in (ProxyPrograms, ProxySpeed, ProxyChaos):
        for peer in PEERS:
            proxy = catalog.system(peer).build()
            assert study().program_of(proxy) == ""
            named = study(**{peer.replace("-", "_"): f"/opt/{peer}"})
            assert named.program_of(proxy) == f"/opt/{peer}"
            assert [other for other in PEERS if named.program_of(catalog.system(other).build())] == [peer]


def test_what_needs_no_program_of_others_has_none():
    named = ProxyPrograms(litellm="/opt/a", vllm_router="/opt/b", haproxy="/opt/c")
    assert named.program_of(DirectConnection()) == named.program_of(WavetankRouter()) == ""
