"""A walk through a step moment by moment, in plain Python, by the rules that the compiled simulator claims to keep."""


def walked(forward, critical, backward, order, queue, shared=True):
    """Return when the last section is done; times are small whole numbers."""
    sections = range(len(forward))
    uses = [[k for k in order if forward[s][k] or backward[s][k]] for s in sections]
    ready = [set() for _ in sections]
    waiting = [set() for _ in sections]
    back_ready = [[] for _ in sections]
    next_forward, next_critical = [0 for _ in sections], 0
    # What runs on each machine: (ends, what).
    machines = {("critical",): None}
    for s in sections:
        machines["aux", s, "f"] = None
        if not shared:
            machines["aux", s, "b"] = None
    now = last = 0
    while True:
        for name, running in machines.items():
            if running is not None and running[0] == now:
                last = now
                machines[name] = None
                kind, s, k = running[1]
                if kind == "f":
                    ready[s].add(k)
                elif kind == "c":
                    for each in sections:
                        if k in uses[each]:
                            back_ready[each].append(k)
        progress = True
        while progress:
            progress = False
            if machines["critical",] is None and next_critical < len(order):
                k = order[next_critical]
                if all(k in ready[s] for s in sections if k in uses[s]):
                    for s in sections:
                        waiting[s].discard(k)
                    machines["critical",] = (now + critical[k], ("c", -1, k))
                    next_critical += 1
                    progress = True
            for s in sections:
                machine = "aux", s, "f"
                room = queue == 0 or len(waiting[s]) < queue
                if machines[machine] is None and next_forward[s] < len(uses[s]) and room:
                    k = uses[s][next_forward[s]]
                    waiting[s].add(k)
                    next_forward[s] += 1
                    machines[machine] = (now + forward[s][k], ("f", s, k))
                    progress = True
                machine = "aux", s, "f" if shared else "b"
                if machines[machine] is None and back_ready[s]:
                    k = back_ready[s].pop(0)
                    progress = True
                    if backward[s][k]:
                        machines[machine] = (now + backward[s][k], ("b", s, k))
        if not any(machines.values()):
            return last
        now = min(running[0] for running in machines.values() if running is not None)
