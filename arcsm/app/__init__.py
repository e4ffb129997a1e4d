"""A page to play with: draw a density, learn a table, clean digits. Needs the extra `app`.

from arcsm.app import start_server

server = start_server()  # server.url; server.close()
"""

from arcsm.app.digits import load_digits
from arcsm.app.server import Server, start_server

__all__ = ["Server", "load_digits", "start_server"]
