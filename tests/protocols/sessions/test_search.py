import numpy as np
import pytest

from wavetank.protocols.sessions import product
from wavetank.protocols.sessions.examples import example
from wavetank.protocols.sessions.mixed_choice import MixedChoice
from wavetank.protocols.sessions.search import Found, fill_slots, place
from wavetank.protocols.sessions.tags import sides_of


def room(rows, width):
    return Found(
        rows=np.zeros((rows, width), np.int16),
        parents=np.zeros(rows, np.int32),
        starts=np.zeros(rows + 1, np.int64),
        targets=np.zeros(1, np.int32),
        whats=np.zeros(1, np.int8),
        pairs=np.zeros(1, np.int16),
        slots=np.full(2 * rows, -1, np.int32),
        counts=np.zeros(3, np.int64),
    )


def test_equal_rows_get_one_number_and_others_one_of_their_own():
    found = room(512, 3)
    rows = [np.array([one, two, three], np.int16) for one in range(6) for two in range(6) for three in range(6)]
    numbers = [place(found, row, 0) for row in rows]
    assert numbers == list(range(216))
    assert [place(found, row, 7) for row in reversed(rows)] == numbers[::-1]
    assert found.counts[0] == 216


def test_a_larger_hash_table_finds_what_the_smaller_one_held():
    found = room(64, 2)
    for number in range(60):
        place(found, np.array([number, -number], np.int16), number - 1)
    slots = np.full(1024, -1, np.int32)
    fill_slots(found.rows, 60, slots)
    larger = found._replace(slots=slots)
    assert [place(larger, np.array([number, -number], np.int16), 0) for number in range(60)] == list(range(60))
    assert found.parents[:3].tolist() == [-1, 0, 1]


def reference(machines, bound):
    """Count configurations and steps by sets and tuples, from the same rules one step at a time."""
    rules = product._Product(machines, bound, True)
    roles = len(rules.roles)

    def settled(here):
        locals_, queues = list(here[0]), [list(queue) for queue in here[1]]
        while True:
            tags = [rules.tag_of_local(each) for each in locals_]
            every = tags + [rules.tag_of_message(each) for queue in queues for each in queue]
            sides = {}
            for tag in every:
                for mix, turn, right in sides_of(tag):
                    sides.setdefault((mix, turn), set()).add(right)
            contested = {each for each, found in sides.items() if len(found) == 2}
            for tag in every:
                after = False
                for mix, turn, _ in sides_of(tag):
                    after = after or (mix, turn) in contested
                    if after:
                        contested.add((mix, turn))
            free = [
                (mix, turn)
                for mix, turn in sides
                if (mix, turn) not in contested
                and all(
                    (mix, turn) in {each[:2] for each in sides_of(tags[role])}
                    for role in range(roles)
                    if rules.passers[mix] >> role & 1
                )
            ]
            if not free:
                return tuple(locals_), tuple(map(tuple, queues))
            entry = min(free, key=rules.entries)
            for role, local in enumerate(locals_):
                _, state, _ = rules.locals.things[local]
                locals_[role] = rules.local(role, state, product.without(tags[role], *entry))
            for pair, queue in enumerate(queues):
                for position, message in enumerate(queue):
                    tag = product.without(rules.tag_of_message(message), *entry)
                    queue[position] = rules.message(pair, rules.label_of(message), tag)

    def followers(here):
        locals_, queues = here
        found = []
        for pair, (_, receiver) in enumerate(rules.pairs):
            if queues[pair]:
                what, after = rules.reaction(locals_[receiver], queues[pair][0])
                forced = what == product.DROPS
                if what == product.WAITS:
                    tag = rules.tag_of_message(queues[pair][0])
                    coming = [
                        each for other, to in enumerate(rules.pairs) if to[1] == receiver for each in queues[other]
                    ]
                    if not any(product.voids(rules.tag_of_message(each), tag) for each in coming):
                        continue
                    what = product.DROPS
                changed = [list(locals_), list(queues)]
                changed[0][receiver] = after
                if what != product.SWITCHES:
                    changed[1][pair] = queues[pair][1:]
                if forced:
                    return [settled(changed)]
                found.append(settled(changed))
        for role, local in enumerate(locals_):
            for pair, message, after in rules.sends(local):
                if len(queues[pair]) < bound:
                    changed = [list(locals_), list(queues)]
                    changed[0][role] = after
                    changed[1][pair] = (*queues[pair], message)
                    found.append(settled(changed))
        return found

    start = (tuple(rules.local(role, 0, ()) for role in range(roles)), tuple(() for _ in rules.pairs))
    seen, waiting, steps = {start}, [start], 0
    while waiting:
        for there in followers(waiting.pop()):
            steps += 1
            if there not in seen:
                seen.add(there)
                waiting.append(there)
    return len(seen), steps


COPIES = """protocol Copies(role p, role q, role s) {
  rec X { mix m { data from p to q; copy from p to s; continue X; }
          or interrupt by q { stop from q to p; stopped from q to s; fin from p to s; continue X; } } }"""


@pytest.mark.parametrize("text", [example("third_party"), example("stream"), example("amqp_client"), COPIES])
@pytest.mark.parametrize("bound", [1, 2])
def test_the_compiled_search_counts_what_a_plain_one_counts(text, bound):
    machines = MixedChoice().machines(text)
    found = product.explore(machines, queue_bound=bound)
    assert (found.configurations, found.steps) == reference(machines, bound)


def test_tables_and_space_grow_with_what_is_met():
    body = "".join(
        f"m{number} from a{number} to b{number}; n{number} from a{number} to b{number}; " for number in range(5)
    )
    roles = ", ".join(f"role a{number}, role b{number}" for number in range(5))
    machines = MixedChoice().machines(f"protocol P({roles}) {{ {body} }}")
    # Five independent pipelines of two messages with room for both: six configurations each.
    assert product.explore(machines, queue_bound=2).configurations == 6**5
