"""The control plane's server: an API in a thread of the driver's process."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable

import uvicorn

from meander.clock import Clock
from meander.control.api import make_app
from meander.control.guard import policy
from meander.control.running import Running
from meander.errors import Busy, ConfigError, Retryable

PORT = 9008
_PATIENCE = 10.0


class Server:
    """Listens from the moment it is made; ``close`` lets the answers that are under way leave first."""

    def __init__(
        self,
        run: Running,
        host: str,
        port: int,
        token: str | None,
        clock: Clock,
        on_stop: Callable[[], object] | None = None,
        code_token: str | None = None,
        gather: Callable[[], bytes] | None = None,
    ) -> None:
        app = make_app(run, policy(host, token, code_token), clock, on_stop, gather)
        self._socket = listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", timeout_graceful_shutdown=int(_PATIENCE))
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="meander-http", daemon=True)
        self._thread.start()
        deadline = clock.monotonic() + _PATIENCE
        while not self._server.started:
            if not self._thread.is_alive() or clock.monotonic() > deadline:
                raise Retryable(f"the control plane did not start on {self.url}; try again")
            clock.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_PATIENCE)
        self._socket.close()

    def __repr__(self) -> str:
        return f"<control plane at {self.url}>"


def listen(host: str, port: int) -> socket.socket:
    """The socket is bound here and now, so that a port in use is an error of the call and not of a thread."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Busy(
                f"port {port} on {host} is in use, by another control plane perhaps; take another port, or stop what listens there"
            ) from error
        raise ConfigError(
            f"the control plane cannot listen on {host}:{port} ({error.strerror or error}); give another host or port"
        ) from error
