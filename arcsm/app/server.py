"""The server of the page: on this machine alone unless told otherwise, and nothing from outside."""

import logging
import os
import socket
from dataclasses import dataclass
from typing import Any

from arcsm.app.background import end_all
from arcsm.app.digits import load_digits
from arcsm.app.tables import MOST_BYTES
from arcsm.errors import InputError
from arcsm.images import ImageModel

HOST, PORT = "127.0.0.1", 7860
_LAST_WORK = 60.0  # seconds for what is being computed to end: steps of a training, one digit
_PORTS = 100  # that are tried one after another where none is asked for

# The browser is told to fetch nothing from elsewhere, whatever the page or a library may ask for.
# Gradio's scripts are its own, some of them inline, and its drawing pad compiles shaders.
_POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:;"
    " object-src 'none'; base-uri 'self'; form-action 'self'"
)


@dataclass(frozen=True)
class Server:
    """A page that is being served at `url` until it is closed."""

    page: Any
    url: str

    def close(self) -> None:
        """Stop serving, and all that is being computed."""
        self.page.close(verbose=False)
        end_all(_LAST_WORK)


def need_gradio() -> None:
    """Raise InputError, with what to do about it, where Gradio is not installed."""
    # Both are read when Gradio is imported; the second keeps its libraries from asking the hub.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import gradio
    except ImportError as error:
        raise InputError(
            "expected Gradio, which makes the page, got none installed;"
            " install it with: pip install 'arcsm[app]'"
        ) from error
    if int(gradio.__version__.partition(".")[0]) < 6:
        raise InputError(
            f"expected Gradio 6 or later, got {gradio.__version__};"
            " install it with: pip install 'arcsm[app]'"
        )


def start_server(
    model: ImageModel | None = None,
    *,
    host: str = HOST,
    port: int | None = None,
    browser: bool = False,
    sizes: Any = None,
) -> Server:
    """Serve the page and return at once.

    `port` None takes the first free one from 7860 on. `model` is that of digits,
    by default the one that comes with arcsm; `sizes` an
    `arcsm.app.page.AppSizes`. With `browser` the page is opened.
    """
    need_gradio()
    from starlette.middleware import Middleware

    from arcsm.app.page import build_page
    from arcsm.app.style import CSS, theme

    chosen = _free_port(host, port)
    page = build_page(model or load_digits("arcsm:digits"), sizes)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _, url, _ = page.launch(
        server_name=host,
        server_port=chosen,
        inbrowser=browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        show_error=True,
        ssr_mode=False,
        pwa=False,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],
        max_file_size=MOST_BYTES,
        theme=theme(),
        css=CSS,
        app_kwargs={
            "middleware": [Middleware(_Inward)],
            "docs_url": None,
            "redoc_url": None,
        },
    )
    return Server(page, url)


class _Inward:
    """Adds the policy to every answer."""

    def __init__(self, app: Any):
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"content-security-policy", _POLICY.encode()),
                    (b"referrer-policy", b"no-referrer"),
                ]
            await send(message)

        await self._app(scope, receive, told if scope["type"] == "http" else send)


def _free_port(host: str, port: int | None) -> int:
    """Return a port that can be listened on, before anything is built for it."""
    tried = range(PORT, PORT + _PORTS) if port is None else [port]
    reason = "none is free"
    for candidate in tried:
        try:
            found = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)
            with socket.socket(found[0][0], socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(found[0][4])
            return candidate
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if isinstance(error, socket.gaierror):
                break
    where = f"port {port}" if port is not None else f"a port from {PORT} to {PORT + _PORTS - 1}"
    raise InputError(
        f"expected to serve on {where} of {host!r}, got: {reason}; choose another --port or --host"
    )
