from wavetank.protocols.sessions.product import explore
from wavetank.protocols.sessions.untagged_timeouts import UntaggedTimeouts


def test_the_checker_finds_what_is_wrong_with_it():
    found = explore(UntaggedTimeouts().race().machines)
    assert [each.trouble for each in found.findings] == ["orphan message"]
    assert [step.label for step in found.findings[0].run] == ["data", "stop"]
