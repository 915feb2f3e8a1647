"""Session roles on sockets: asyncio over TCP, one connection from each role to each other."""
