"""Runs the application until it is told to stop; what was accepted is answered first."""

import signal
import socket
from collections.abc import Callable
from typing import Any

from ddu.errors import InputError
from ddu.messages import require

_GRACE = 30  # seconds for what was accepted


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        raise InputError(f"Cannot listen on {host}, port {port}: {error.strerror or error}. Choose another.") from error


def run_app(app: Any, listener: socket.socket, *, on_ready: Callable[[str], object] | None = None) -> None:
    """Serves an ASGI application until SIGINT or SIGTERM; a second SIGINT does not wait for answers.

    Args:
        app: As of `make_app`.
        listener: A socket as of `bind`.
        on_ready: Is told the address.
    """
    uvicorn: Any = require("uvicorn", extra="serve", purpose="ddu serve")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
        timeout_keep_alive=30,
    )
    host, port = listener.getsockname()[:2]
    if on_ready is not None:
        on_ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    # uvicorn gives the signal back once all is done: it has served its purpose then
    before = {name: signal.signal(name, lambda *_: None) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
