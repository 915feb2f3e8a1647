"""A node that replays requests through its two caches, window by window.

Both caches are true LRU lists with the identities of what they hold.  Cutting the share of embedding rows frees cold
rows at once.  Growing it takes only what the other cache gives up anyway: keys and values are dropped when a history is
admitted and no more of them may stay, and until then the rows wait.  Rows that fit after a growth come on demand, and
from a list of those evicted last, copied in the background within a share of the gathering rate.  At no time do both
caches hold more than the memory.

Beyond its end each cache remembers what it dropped last, as much as two hundredths of the memory would hold: requests
for these are what a little more memory would have answered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.serving.memory.che import Floats
from wavetank.serving.memory.traffic import Traffic
from wavetank.sim.compiled import compiled
from wavetank.sim.streams import mix

Ints = npt.NDArray[np.int64]

STEP = 0.02
"""Most that the share of embedding rows moves per window, and what each cache remembers beyond its end."""
LEAST, MOST = 0.02, 0.98
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# State of a list: what each item is in, and its neighbours; the last two places are the ends of the two lists.
_NOWHERE, _PRESENT, _REMEMBERED = 0, 1, 2
# Places in the array of counts.
_ROWS, _GHOST_ROWS, _GHOST_USERS, _SWAPPED = 0, 1, 2, 3
# Places in the array of amounts.
_KV_TOKENS, _GHOST_TOKENS, _FREE_AT, _REFILL_BYTES, _CREDIT = 0, 1, 2, 3, 4
# Places in the array of a window's sums.
LOOKED_UP, MISSED, ROW_GHOST_HITS, USER_HITS, USER_GHOST_S, SERVICE_S, REFILLED, HISTORY, ROW_S, ONCE = range(10)


class Caches(NamedTuple):
    """The state of a node, in arrays that compiled code changes.

    Attributes
    ----------
    row_in, row_before, row_after : ndarray of int64, shape (groups + 2,)
        List of each group of rows, and its neighbours from the last used on.
    user_in, user_before, user_after : ndarray of int64, shape (users + 2,)
    user_tokens : ndarray of float64, shape (users + 2,)
        Tokens held, or remembered, of each user.
    order : ndarray of int64, shape (groups,)
        Which group each rank is now.
    seen : ndarray of int64, shape (users,)
        Window in which each user came last.
    counts : ndarray of int64
    amounts : ndarray of float64
    """

    row_in: Ints
    row_before: Ints
    row_after: Ints
    user_in: Ints
    user_before: Ints
    user_after: Ints
    user_tokens: Floats
    order: Ints
    seen: Ints
    counts: Ints
    amounts: Floats


@compiled
def _take_out(before: Ints, after: Ints, item: int) -> None:
    before[after[item]] = before[item]
    after[before[item]] = after[item]


@compiled
def _put_behind(before: Ints, after: Ints, item: int, place: int) -> None:
    follower = after[place]
    after[place] = item
    before[item] = place
    after[item] = follower
    before[follower] = item


@compiled
def _evict_row(caches: Caches, ghost_rows: int) -> None:
    """Drop the row that was used longest ago, and remember it."""
    groups = len(caches.order)
    cold = caches.row_before[groups]
    _take_out(caches.row_before, caches.row_after, cold)
    caches.counts[_ROWS] -= 1
    _put_behind(caches.row_before, caches.row_after, cold, groups + 1)
    caches.row_in[cold] = _REMEMBERED
    caches.counts[_GHOST_ROWS] += 1
    while caches.counts[_GHOST_ROWS] > ghost_rows:
        last = caches.row_before[groups + 1]
        _take_out(caches.row_before, caches.row_after, last)
        caches.row_in[last] = _NOWHERE
        caches.counts[_GHOST_ROWS] -= 1


@compiled
def _forget_user(caches: Caches, user: int) -> None:
    """Take a user out of what is remembered."""
    _take_out(caches.user_before, caches.user_after, user)
    caches.user_in[user] = _NOWHERE
    caches.amounts[_GHOST_TOKENS] -= caches.user_tokens[user]
    caches.counts[_GHOST_USERS] -= 1


@compiled
def _evict_user(caches: Caches, ghost_tokens: float) -> None:
    """Drop the history that was used longest ago, and remember it."""
    users = len(caches.seen)
    cold = caches.user_before[users]
    _take_out(caches.user_before, caches.user_after, cold)
    caches.amounts[_KV_TOKENS] -= caches.user_tokens[cold]
    _put_behind(caches.user_before, caches.user_after, cold, users + 1)
    caches.user_in[cold] = _REMEMBERED
    caches.counts[_GHOST_USERS] += 1
    caches.amounts[_GHOST_TOKENS] += caches.user_tokens[cold]
    while caches.amounts[_GHOST_TOKENS] > ghost_tokens and caches.counts[_GHOST_USERS] > 1:
        _forget_user(caches, caches.user_before[users + 1])


@compiled
def _row_room(caches: Caches, share: float, memory: float, kv_token: float, group_bytes: float) -> int:
    """Return how many groups of rows may be held now."""
    for_kv = max((1.0 - share) * memory, caches.amounts[_KV_TOKENS] * kv_token)
    return max(int((memory - for_kv) / group_bytes + 1e-9), 0)


@compiled
def _uniform(key: int, request: int, number: int) -> float:
    return _draw(mix(np.uint64(key) + np.uint64(request) * _GOLDEN), number)


@compiled
def _draw(of_request: np.uint64, number: int) -> float:
    """Return a request's draw of a number; what the request has in common is mixed once."""
    return np.float64(mix(of_request + np.uint64(number) * _GOLDEN) >> np.uint64(11)) * 2.0**-53


@compiled
def serve_window(
    caches: Caches,
    figures: Floats,
    arrival_s: Floats,
    users: Ints,
    segments: Ints,
    histories: Floats,
    cumulative: Floats,
    guide: Ints,
    hot: Floats,
    swaps: Ints,
    key: int,
    first: int,
    last: int,
    window: int,
    share: float,
    refill: bool,
    latency_s: Floats,
    sums: Floats,
) -> None:
    """Serve requests ``first`` to ``last`` in order of arrival, with a fixed share; ``figures`` of `figures_of`."""
    memory, kv_token, group_bytes, per_token, new_tokens = figures[0], figures[1], figures[2], figures[3], figures[4]
    rate, refill_share, layers, width, flops = figures[5], figures[6], figures[7], figures[8], figures[9]
    groups, all_users = len(caches.order), len(caches.seen)
    steps = guide.shape[1] - 1
    ghost_rows = max(int(0.02 * memory / group_bytes), 1)
    ghost_tokens = 0.02 * memory / kv_token
    kv_limit = (1.0 - share) * memory / kv_token
    hot_groups = 0
    sums[:] = 0.0

    room = _row_room(caches, share, memory, kv_token, group_bytes)
    while caches.counts[_ROWS] > room:
        _evict_row(caches, ghost_rows)
    for request in range(first, last):
        while caches.counts[_SWAPPED] < len(swaps) and swaps[caches.counts[_SWAPPED], 0] <= request:
            one, other = swaps[caches.counts[_SWAPPED], 1], swaps[caches.counts[_SWAPPED], 2]
            caches.order[one], caches.order[other] = caches.order[other], caches.order[one]
            caches.counts[_SWAPPED] += 1
        user, history, segment = users[request], histories[request], segments[request]
        if caches.seen[user] != window:
            caches.seen[user] = window
            sums[ONCE] += 1.0
        sums[HISTORY] += history
        tokens, context = history + new_tokens, history / 2
        whole_s = layers * (8.0 * tokens * width * width + 4.0 * tokens * context * width) / flops
        part_s = layers * (8.0 * new_tokens * width * width + 4.0 * new_tokens * history * width) / flops

        # Keys and values of the user.
        resident = caches.user_in[user] == _PRESENT
        if resident:
            sums[USER_HITS] += 1.0
            tokens = new_tokens
            _take_out(caches.user_before, caches.user_after, user)
            caches.amounts[_KV_TOKENS] -= caches.user_tokens[user]
        elif caches.user_in[user] == _REMEMBERED:
            sums[USER_GHOST_S] += whole_s - part_s
            _forget_user(caches, user)
        caches.user_in[user] = _NOWHERE
        if history <= kv_limit:
            while caches.amounts[_KV_TOKENS] + history > kv_limit:
                _evict_user(caches, ghost_tokens)
            _put_behind(caches.user_before, caches.user_after, user, all_users)
            caches.user_in[user] = _PRESENT
            caches.user_tokens[user] = history
            caches.amounts[_KV_TOKENS] += history
        room = _row_room(caches, share, memory, kv_token, group_bytes)
        while caches.counts[_ROWS] > room:
            _evict_row(caches, ghost_rows)

        # Copies in the background, for the time since the last request.
        refilled = 0.0
        if refill and caches.counts[_ROWS] < room and caches.counts[_GHOST_ROWS] > 0:
            idle_s = arrival_s[request] - arrival_s[max(request - 1, 0)]
            caches.amounts[_CREDIT] += min(idle_s, 1.0) * rate * refill_share
            while (
                caches.amounts[_CREDIT] >= group_bytes
                and caches.counts[_ROWS] < room
                and caches.counts[_GHOST_ROWS] > 0
            ):
                back = caches.row_after[groups + 1]
                _take_out(caches.row_before, caches.row_after, back)
                caches.counts[_GHOST_ROWS] -= 1
                _put_behind(caches.row_before, caches.row_after, back, caches.row_before[groups])
                caches.row_in[back] = _PRESENT
                caches.counts[_ROWS] += 1
                caches.amounts[_CREDIT] -= group_bytes
                refilled += group_bytes
        else:
            caches.amounts[_CREDIT] = 0.0
        sums[REFILLED] += refilled

        # Embedding rows of every token that is computed.
        exact = tokens * per_token
        look_ups = int(exact)
        of_request = mix(np.uint64(key) + np.uint64(request) * _GOLDEN)
        if _draw(of_request, 0) < exact - look_ups:
            look_ups += 1
        hot_groups = max(int(hot[segment] * groups), 1)
        missed = 0
        for number in range(1, look_ups + 1):
            draw = _draw(of_request, number)
            if hot[segment] > 0.0 and draw < 0.5:
                # Half of all look-ups go to neighbours of one place in the shuffled order.
                rank = (segment * 7919 + int(2.0 * draw * hot_groups)) % groups
            else:
                if hot[segment] > 0.0:
                    draw = 2.0 * draw - 1.0
                rank = guide[segment, int(draw * steps)]
                while cumulative[segment, rank] < draw:
                    rank += 1
            row = caches.order[rank]
            where = caches.row_in[row]
            if where == _PRESENT:
                _take_out(caches.row_before, caches.row_after, row)
                _put_behind(caches.row_before, caches.row_after, row, groups)
                continue
            missed += 1
            if where == _REMEMBERED:
                sums[ROW_GHOST_HITS] += 1.0
                _take_out(caches.row_before, caches.row_after, row)
                caches.counts[_GHOST_ROWS] -= 1
                caches.row_in[row] = _NOWHERE
            if room > 0:
                if caches.counts[_ROWS] >= room:
                    _evict_row(caches, ghost_rows)
                _put_behind(caches.row_before, caches.row_after, row, groups)
                caches.row_in[row] = _PRESENT
                caches.counts[_ROWS] += 1

        gathering = rate * (1.0 - refill_share) if refilled > 0.0 else rate
        copy_s = missed * group_bytes / gathering
        service_s = copy_s + (part_s if resident else whole_s)
        start_s = max(arrival_s[request], caches.amounts[_FREE_AT])
        caches.amounts[_FREE_AT] = start_s + service_s
        latency_s[request] = start_s + service_s - arrival_s[request]
        sums[LOOKED_UP] += look_ups
        sums[MISSED] += missed
        sums[SERVICE_S] += service_s
        sums[ROW_S] += copy_s


def figures_of(traffic: Traffic) -> Floats:
    """Return the node's figures in the order in which compiled code takes them."""
    node = traffic.node
    return np.array([
        node.memory_bytes, node.kv_bytes_per_token, node.row_bytes * traffic.group,
        node.rows_per_token / traffic.group, node.new_tokens, node.copy_bytes_per_s, node.refill_share, node.layers,
        node.width, node.flops_per_s,
    ], dtype=np.float64)  # fmt: skip


def filled(traffic: Traffic, share: float) -> Caches:
    """Return caches that hold what is most popular at the beginning, as after a long time at one share.

    Parameters
    ----------
    traffic : Traffic
    share : float
        Of the memory, for embedding rows.
    """
    node, figures = traffic.node, figures_of(traffic)
    groups, users = len(traffic.order), node.users
    rows, people = groups + 2, users + 2
    caches = Caches(
        row_in=np.zeros(rows, np.int64), row_before=np.zeros(rows, np.int64), row_after=np.zeros(rows, np.int64),
        user_in=np.zeros(people, np.int64), user_before=np.zeros(people, np.int64),
        user_after=np.zeros(people, np.int64), user_tokens=np.zeros(people), order=traffic.order.copy(),
        seen=np.full(users, -1, np.int64), counts=np.zeros(4, np.int64), amounts=np.zeros(5),
    )  # fmt: skip
    for before, after, items in (
        (caches.row_before, caches.row_after, groups), (caches.user_before, caches.user_after, users)
    ):  # fmt: skip
        before[items:] = after[items:] = np.arange(items, items + 2)
    counts = np.bincount(traffic.user[: min(len(traffic), 20_000)], minlength=users)
    mean = traffic.segments[0].history
    limit = (1.0 - share) * node.memory_bytes / node.kv_bytes_per_token
    for user in np.argsort(-counts, kind="stable"):
        if caches.amounts[_KV_TOKENS] + mean > limit:
            break
        _put_behind(caches.user_before, caches.user_after, int(user), int(caches.user_before[users]))
        caches.user_in[user] = _PRESENT
        caches.user_tokens[user] = mean
        caches.amounts[_KV_TOKENS] += mean
    room = _row_room(caches, share, node.memory_bytes, float(node.kv_bytes_per_token), figures[2])
    for rank in range(min(room, groups)):
        row = int(traffic.order[rank])
        _put_behind(caches.row_before, caches.row_after, row, int(caches.row_before[groups]))
        caches.row_in[row] = _PRESENT
    caches.counts[_ROWS] = min(room, groups)
    return caches


def held_bytes(caches: Caches, traffic: Traffic) -> tuple[float, float]:
    """Return the bytes of embedding rows and of keys and values that are held now."""
    node = traffic.node
    rows = float(np.count_nonzero(caches.row_in == _PRESENT)) * node.row_bytes * traffic.group
    users = float(caches.user_tokens[caches.user_in == _PRESENT].sum()) * node.kv_bytes_per_token
    return rows, users


def queue_s(caches: Caches, now_s: float) -> float:
    """Return how long a request that comes now waits.

    Parameters
    ----------
    caches : Caches
    now_s : float
    """
    return max(float(caches.amounts[_FREE_AT]) - now_s, 0.0)
