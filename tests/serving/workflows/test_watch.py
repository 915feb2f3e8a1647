"""What sessions take from views: new applications once, and the caches as they are."""

from __future__ import annotations

from tests.serving.workflows.conftest import application, platform

from wavetank.serving.workflows.dispatcher import Dispatcher
from wavetank.serving.workflows.rivals import RoundRobin
from wavetank.serving.workflows.watch import Watch


def test_applications_are_taken_in_once_and_caches_are_those_of_the_view():
    devices = platform((1.0, 1.0))
    books = Dispatcher(platform=devices, scheduler=RoundRobin())
    watch = Watch(devices)
    books.arrive(application(((),), (1.0,)))
    assert [list(each.models) for each in watch.see(books.view(0.0))] == [[], []]
    first = watch.times[0]
    books.decide(0.0)
    books.arrive(application(((),), (2.0,)))
    assert [list(each.models) for each in watch.see(books.view(1.0))] == [["a"], []]
    assert (len(watch.times), watch.times[0] is first) == (2, True)
