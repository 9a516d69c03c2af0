"""A Redis that is far away: passes what comes to it on to a server, and the answers back after a while.

Arguments: the port to listen on, the server's port, the delay in ms."""

import asyncio
import sys

PIECE = 1 << 18


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Writes everything that is read, each piece so many seconds later, in its order."""
    loop = asyncio.get_running_loop()
    while piece := await reader.read(PIECE):
        if delay:
            loop.call_later(delay, writer.write, piece)
        else:
            writer.write(piece)
    writer.close()


async def serve(port: int, server: int, delay: float) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server)
        await asyncio.gather(pass_on(reader, to_server, 0), pass_on(from_server, writer, delay))

    listener = await asyncio.start_server(client, "127.0.0.1", port)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000))
