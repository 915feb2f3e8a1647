import asyncio

import pytest

from wavetank.errors import BadValueError
from wavetank.protocols.sessions.examples import NAMES, example
from wavetank.protocols.sessions.generate_python import class_name, module_name, python_files
from wavetank.protocols.sessions.live.endpoint import new_secret
from wavetank.protocols.sessions.mixed_choice import MixedChoice


def written(name):
    machines = MixedChoice().machines(example(name))
    ((file, text),) = python_files(machines, source=f"{name}.nuscr").items()
    space = {"__name__": file.removesuffix(".py")}
    exec(compile(text, file, "exec"), space)
    return machines, space


@pytest.mark.parametrize("name", NAMES)
def test_the_classes_hold_the_machines_they_were_made_from(name):
    machines, space = written(name)
    for role, machine in machines.items():
        assert space[class_name(role)].machine == machine


def test_the_twins_run_over_tcp():
    _, space = written("race")

    async def race():
        secret = new_secret()
        async with space["P"](secret=secret) as p, space["Q"](secret=secret) as q:
            p.connect({"q": q.address})
            q.connect({"p": p.address})
            await p.send_data_to_q(7)
            taken = await q.receive(5.0)
            return taken.label, taken.payload, p.ended, q.ended

    assert asyncio.run(race()) == ("data", (7,), True, True)


def test_names_become_classes_and_methods():
    assert (class_name("220"), class_name("class"), module_name("ThirdParty")) == ("P220", "Class_", "third_party")
    machines = MixedChoice().machines("protocol P(role A, role B) { 220 from A to B; }")
    (text,) = python_files(machines, source="p.nuscr").values()
    assert "async def send_220_to_B(self, *payload: object)" in text


def test_roles_of_one_class_name_are_refused():
    machines = MixedChoice().machines("protocol P(role a, role A) { m from A to a; }")
    with pytest.raises(BadValueError, match="same name as Python classes"):
        python_files(machines, source="p.nuscr")
