from wavetank.protocols.sessions.global_types import global_type
from wavetank.protocols.sessions.parser import parse_protocols
from wavetank.protocols.sessions.product import explore
from wavetank.protocols.sessions.projection import project_all
from wavetank.protocols.sessions.referee_choice import PROTOCOL, RefereeChoice


def test_its_protocol_is_directed_choice_alone_and_can_always_go_on():
    protocol = global_type(parse_protocols(PROTOCOL))
    assert protocol.mixes == {}
    assert explore(project_all(protocol)).findings == ()


def test_all_it_sends_is_in_its_protocol():
    plan = RefereeChoice().race()
    referee = plan.machines["referee"]
    sent = {(each.partner, each.label) for _, each in referee.transitions() if each.sends}
    assert {step for steps in plan.verdict.values() for step in steps} == sent
