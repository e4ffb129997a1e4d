"""Serve the page with little of everything, until the standard input ends: run by the tests."""

import json
import sys

import torch

from arcsm.app.digits import DigitSizes
from arcsm.app.learning import LearningSizes
from arcsm.app.page import AppSizes
from arcsm.app.server import start_server
from arcsm.app.tables import TableSizes
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM

SIZES = AppSizes(
    LearningSizes(rows=500, steps=200, batch_size=64, hidden=(16,), grid=30, shown=60, pause=0.3),
    TableSizes(seconds=5.0, max_steps=5, ensemble=1, odd=2, samples=60),
    DigitSizes(draws=2),
)


def main() -> None:
    torch.set_num_threads(1)
    density = ARCSM.made(784, hidden=(4,), seed=0)
    model = ImageModel(density, (28, 28, 1), ImageSettings(network="made"))
    server = start_server(model, sizes=SIZES)
    handlers = server.page.fns.values()
    facts = {
        "url": server.url,
        "training": [fn.concurrency_limit for fn in handlers if fn.concurrency_id == "training"],
        "open": [str(fn) for fn in handlers if fn.api_visibility != "private"],
        "analytics": server.page.analytics_enabled,
    }
    print(json.dumps(facts), flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
