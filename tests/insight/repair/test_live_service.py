"""The service process: pages, a leak that makes requests larger, draining."""

import asyncio

from wavetank.insight.repair.live_service import ANSWER, KEPT_BYTES, Service


def test_work_is_answered_and_a_leak_keeps_memory_from_then_on():
    async def pages():
        service = Service()
        first = await service.answer("/work")
        before = len(service.kept)
        await service.answer("/leak")
        await service.answer("/work")
        await service.answer("/work")
        return first, before, [len(each) for each in service.kept], await service.answer("/anything")

    first, before, kept, other = asyncio.run(pages())
    assert (first, before, other) == (ANSWER, 0, b"ok")
    assert kept == [KEPT_BYTES] * 2


def test_a_leak_ends_before_memory_does(monkeypatch):
    monkeypatch.setattr("wavetank.insight.repair.live_service.MOST_KEPT", 1)

    async def filled():
        service = Service()
        for page in ("/leak", "/work", "/work", "/work"):
            await service.answer(page)
        return len(service.kept)

    assert asyncio.run(filled()) == 1


def test_draining_waits_for_what_is_in_the_pool():
    async def order():
        service, said = Service(), []

        async def named(page):
            await service.answer(page)
            said.append(page)

        work = asyncio.ensure_future(named("/work"))
        await asyncio.sleep(0)
        await named("/drain")
        await work
        return said

    assert asyncio.run(order()) == ["/work", "/drain"]


def test_a_connection_without_a_request_is_closed():
    async def asked():
        server = await asyncio.start_server(Service().serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            said = []
            for raw in (b"", b"no request", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(raw)
                writer.write_eof()
                said.append(await reader.read(-1))
                writer.close()
            return said

    empty, cut, blank, right = asyncio.run(asked())
    assert empty == cut == b""
    assert blank.endswith(b"ok") and right.endswith(b"ok")
